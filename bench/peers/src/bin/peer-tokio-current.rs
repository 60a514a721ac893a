//! The peer tokio with its `current_thread` scheduler: only the yield, where it does better than `multi_thread`.

use std::sync::Arc;
use std::time::Instant;

use peers::{Request, Turns, YIELDS, unsupported};
use tokio::task::yield_now;

fn main() {
    let request = Request::from_arguments();
    if request.workload != "yield" {
        unsupported("only the yield is measured with current_thread");
    }
    let count = request.size(YIELDS);
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("tokio starts");
    runtime.block_on(async {
        let turns = Arc::new(Turns::default());
        let start = Instant::now();
        let tasks = [1, 2].map(|me| {
            let turns = turns.clone();
            tokio::spawn(async move {
                for _ in 0..count / 2 {
                    turns.taken(me);
                    yield_now().await;
                }
            })
        });
        for task in tasks {
            task.await.unwrap();
        }
        turns.finish(start, count);
    });
}
