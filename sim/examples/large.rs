//! tmp
fn main() {
    let s = sim::large::scenario(100_000, 1_000_000_000);
    let t = std::time::Instant::now();
    let e = sim::engine::Engine::new(&s, sim::large::options(&s)).unwrap();
    println!("set-up {:?}", t.elapsed());
    let t = std::time::Instant::now();
    let o = e.run().unwrap();
    let d = t.elapsed();
    println!(
        "{:?} {} events {:.2} M/s {:?}",
        d,
        o.counters.events,
        o.counters.events as f64 / d.as_secs_f64() / 1e6,
        o.counters
    );
    let st = std::fs::read_to_string("/proc/self/status").unwrap();
    println!("{}", st.lines().find(|l| l.starts_with("VmHWM")).unwrap());
}
