//! A step of the proof `scheduling-context` about the order in which waiting calls are received (S-15).

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, Ordering};

use rt::{Answer, Factory, Fallback, Spec, caps, thread};

use super::new_context_soon;
use crate::kit::{self, MS};
use crate::proof::{Doing, Outcome};
use crate::{ensure, markers};

/// Band and relative deadline in ms of each caller, in the order in which they call; `None` for a caller that runs at its weight.
const CALLERS: [Option<(u8, u64)>; 10] = [
    None,
    Some((0, 90)),
    Some((2, 140)),
    None,
    Some((1, 60)),
    Some((0, 40)),
    Some((2, 80)),
    None,
    Some((7, 190)),
    Some((1, 120)),
];

/// Waiting calls at an endpoint are received by band, then deadline, then arrival; calls of threads without a context come last, by
/// arrival.
pub fn by_urgency() -> Outcome {
    let endpoint = Arc::new(caps::any::<Factory>()?.endpoint().doing("make an endpoint")?);
    let mut threads = Vec::new();
    for (method, promise) in (0..).zip(CALLERS) {
        let spec = promise.map(|(band, ms)| Spec::new(MS, 200 * MS).deadline(ms * MS).criticality(band));
        let own = spec.as_ref().map(new_context_soon).transpose()?;
        let (theirs, tid) = (Arc::clone(&endpoint), Arc::new(AtomicU32::new(u32::MAX)));
        let told = Arc::clone(&tid);
        threads.push(thread::spawn(move || -> Outcome {
            if let Some(own) = &own {
                own.bind(Fallback::BestEffort)?.ok()?;
            }
            told.store(thread::id(), Ordering::Release);
            theirs.call(method, [0; 2])?;
            Ok(())
        }));
        kit::wait_until("a caller starts", || Ok(tid.load(Ordering::Acquire) != u32::MAX))?;
        kit::wait_blocked(tid.load(Ordering::Acquire))?;
    }
    let mut heard = Vec::new();
    let mut call = endpoint.recv(&mut [])?;
    loop {
        heard.push(call.method);
        if heard.len() == CALLERS.len() {
            break;
        }
        call = endpoint.reply_recv(call.token, Answer::Words([0; 2]), &mut [])?;
    }
    endpoint.reply(call.token, Answer::Words([0; 2]))?;
    let mut wanted: Vec<u16> = (0..CALLERS.len() as u16).collect();
    wanted.sort_by_key(|caller| match CALLERS[usize::from(*caller)] {
        Some((band, ms)) => (false, u8::MAX - band, ms),
        None => (true, 0, 0),
    });
    ensure!(heard == wanted, "heard in the order {heard:?}, wanted {wanted:?}");
    threads.into_iter().try_for_each(|thread| thread.join()?)?;
    markers!("calls_by_urgency=ok");
    Ok(())
}
