//! A capability is made up.

fn main() {
    let _spawn = janus::CapSpawn(());
    let _budget = janus::CapBudget::new(janus::Budget::UNLIMITED);
}
