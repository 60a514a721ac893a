//! A nursery, children that borrow from their parent, and their results.
//!
//! Run it: `cargo run -p janus --example hello`

use janus::{Config, Runtime, TaskError};

/// Letters of each word, counted by one task a word. The words are borrowed, not copied: the nursery ends before they do.
fn count(runtime: &Runtime, words: &[&str]) -> Result<Vec<usize>, Box<dyn std::error::Error>> {
    let counts = runtime.run(|cx| {
        cx.nursery(|nursery| {
            let children: Vec<_> = words.iter().map(|word| nursery.spawn(move |_cx| word.len())).collect();
            children.into_iter().map(|child| child.join(cx)).collect::<Result<Vec<_>, _>>()
        })
    })?;
    Ok(counts?)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // SAFETY: no task here keeps anything of its thread over a suspension.
    let runtime = unsafe { Runtime::new(Config::new()) }?;
    let text = String::from("no child outlives the nursery that it was born in");
    let words: Vec<&str> = text.split(' ').collect();
    for (word, letters) in words.iter().zip(count(&runtime, &words)?) {
        println!("{letters:>4}  {word}");
    }

    // A panic ends one task. Its parent gets it as a value, from the handle or, if nobody joined, from the nursery.
    std::panic::set_hook(Box::new(|_| {}));
    let outcome = runtime.run(|cx| {
        cx.nursery(|nursery| {
            nursery.spawn(|_cx| panic!("out of cheese"));
            Ok(())
        })
    })?;
    match outcome {
        Err(TaskError::Panicked(message)) => println!("a child panicked: {message}"),
        other => println!("unexpected: {other:?}"),
    }
    println!("the runtime goes on: {} tasks ended", runtime.stats().total.completed);
    Ok(())
}
