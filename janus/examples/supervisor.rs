//! A small shop under supervision: a ledger, a till that now and then breaks, and a clerk that thinks too long. What breaks is
//! restarted, what thinks too long is given more, then restarted, and the ledger never notices.
//! `cargo run --release -p janus --example supervisor`

use janus::cluster::{Address, Child, Exit, GaveUp, Inbox, Plan, Reply, Strategy, What};
use janus::{Budget, Cancelled, Config, Cx, Profile, Runtime, TaskError, budgeted};
use std::error::Error;
use std::time::Duration;

type Failure = Box<dyn Error + Send + Sync>;

const PATIENCE: Duration = Duration::from_secs(1);

enum Entry {
    Add(u64),
    Total(Reply<u64>),
}

/// Keeps the books: its state is the sum, which is gone if it ends.
fn ledger(cx: &Cx, inbox: &Inbox<Entry>) -> Result<(), Cancelled> {
    let mut total = 0;
    loop {
        match inbox.recv(cx)? {
            Entry::Add(amount) => total += amount,
            Entry::Total(reply) => reply.send(cx, total),
        }
    }
}

/// Takes money, and fails over a coin that it does not know. The coin is gone with it; the next ones wait in the mailbox.
fn till(cx: &Cx, inbox: &Inbox<u64>, books: &Address<Entry>) -> Result<(), Failure> {
    loop {
        match inbox.recv(cx)? {
            13 => return Err("a coin of 13".into()),
            amount => books.cast(cx, Entry::Add(amount))?,
        }
    }
}

/// Steps of 3n + 1 until 1, of which 0 has none.
#[budgeted]
fn steps(cx: &Cx, mut number: u64) -> u64 {
    let mut steps = 0;
    while number != 1 {
        number = if number.is_multiple_of(2) { number / 2 } else { 3 * number + 1 };
        steps += 1;
    }
    steps
}

fn clerk(cx: &Cx, inbox: &Inbox<(u64, Reply<u64>)>) -> Result<(), Cancelled> {
    loop {
        let (number, reply) = inbox.recv(cx)?;
        reply.send(cx, steps(cx, number));
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let config = Config::new().workers(1).profile(Profile::Cluster);
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let (total, answers, why) = unsafe { Runtime::new(config) }?.run(|cx| {
        let mut shop = Plan::new(Strategy::OneForOne).intensity(3, Duration::from_secs(60)).watch(|notice| {
            let (child, life) = (notice.child, notice.incarnation);
            match notice.what {
                What::Started => println!("{child} {life}: started"),
                What::Recharged(times) => println!("{child} {life}: given more, for the {times}. time"),
                What::Ended(exit) => println!("{child} {life}: {exit}"),
                What::GaveUp(why) => println!("given up: {why}"),
            }
        });
        let books = shop.actor(Child::new("ledger"), ledger);
        let to_books = books.clone();
        let coins = shop.actor(Child::new("till").mailbox(4), move |cx, inbox| till(cx, inbox, &to_books));
        let budget = Budget { ops: 20_000, memory: 1 << 20, channel_ops: 1_000, ..Budget::ZERO };
        let more = Budget { ops: 20_000, ..Budget::ZERO };
        let questions = shop.actor(Child::new("clerk").budget(budget).recharge(more, 2), clerk);
        let mut seen = None;
        let _ = cx.nursery(|nursery| {
            let tree = shop.start(cx, nursery);
            for coin in [5, 10, 13, 20, 50] {
                coins.cast(cx, coin).expect("the till is there, or will be");
            }
            let ask = |number| questions.call(cx, PATIENCE, |reply| (number, reply));
            // The second never ends: its clerk does, and the third finds another one.
            let answers = [ask(27), ask(0), ask(97)];
            while books.call(cx, PATIENCE, Entry::Total) != Ok(85)
                && cx.sleep(Duration::from_millis(1)).is_ok()
            {}
            let total = books.call(cx, PATIENCE, Entry::Total);
            // Too many bad coins: the shop closes, the last child first.
            for _ in 0..2 {
                coins.cast(cx, 13).expect("the till is there, or will be");
            }
            seen = Some((total, answers, tree.join(cx)));
            Ok(())
        });
        seen.expect("the body ran")
    })?;
    println!("in the books: {total:?}; answers: {answers:?}");
    assert_eq!(total, Ok(85));
    assert_eq!(answers[0], Ok(111));
    assert_eq!(answers[2], Ok(118));
    match why {
        Err(TaskError::Failed(why)) => {
            let why = why.downcast_ref::<GaveUp>().expect("it gave up");
            assert!(matches!(why.exit, Exit::Failed(_)));
            println!("{why}");
        }
        other => panic!("the shop is open: {other:?}"),
    }
    Ok(())
}
