//! Proof of calls between threads and processes, of capabilities that travel with them, and of every way in which they fail (K-15, K-21).
#![no_std]
#![no_main]

extern crate alloc;

use alloc::format;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::ops::ControlFlow::{Break, Continue};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use programs::ensure;
use programs::kit::{self, MS, Usage, raised, refused};
use programs::proof::{Doing, Failure, Outcome, prove, step};
use programs::random::Random;
use rt::abi::{CapId, Exception, MAX_MESSAGE_BYTES, Op, Sqe, TransportError, flags, rights};
use rt::thread::{self, Builder, JoinHandle};
use rt::{
    Answer, Cap, Client, Endpoint, Factory, Give, MemoryObject, Message, Pending, Reply, caps, println, ring,
    time,
};

rt::main!(run);

fn run() -> i64 {
    let mut args = rt::args::args();
    match args.next() {
        Some("forger") => return prove("ipc forger", || forger(args.next())),
        Some("taker") => return taker(),
        Some("revoked") => return prove("ipc revoked", revoked_child),
        Some("server") => return prove("ipc server", storm_server),
        Some("client") => return prove("ipc client", || storm_client(args.next())),
        _ => {}
    }
    prove("ipc", || {
        println!("ipc: pid {}, {}", rt::boot_info().pid, programs::text::cpus());
        step("messages of two words and of 0 to 4096 bytes (K-15)", messages)?;
        step(
            "what does not fit is refused, and a call survives its receiver's short buffer (K-15)",
            too_long,
        )?;
        step("exceptions arrive with kind and text (K-15)", exceptions)?;
        step("capabilities are copied and moved, with calls and answers (K-15)", transfers)?;
        step("badges say who calls, and cannot be forged (K-15)", badges)?;
        step(
            "a receiver without a slot for a capability loses its turn, not the call (K-15)",
            full_receiver,
        )?;
        step("calls are withdrawn, waiting or in flight (K-15)", cancels)?;
        step("calls of a server thread that ends are Disconnected (K-15)", server_thread_ends)?;
        step("calls of a server process that is killed are Disconnected (K-15)", server_process_ends)?;
        step("an endpoint without a server is closed (K-15)", closed)?;
        step("endpoints whose servers wait in each other's queues close one after the other (K-15)", chain)?;
        step("too many waiting calls are Overloaded (K-15)", overloaded)?;
        step("revoked capabilities are Revoked, and the owner goes on (K-21)", revocation)?;
        step("revocation reaches what is under way in another process (K-21)", revocation_under_way)?;
        step("an old number does not name a new object (K-21)", stale_numbers)?;
        step("rights are what the holder may do (K-21)", missing_rights)?;
        step("tokens are good once, for their receiver (K-15)", tokens)?;
        step("many clients and servers across processes, each answer its own (K-15)", storm)
    })
}

/// Runs the chain twice, because tables grow the first time.
fn chain() -> Outcome {
    one_chain()?;
    let before = Usage::settled()?;
    one_chain()?;
    before.comes_back("after the chain")
}

/// The queue of each endpoint has a call that carries the only right to serve the next one. When the first is released, all of them
/// close.
fn one_chain() -> Outcome {
    /// Calls that a thread has under way.
    const EACH: usize = 25;
    const THREADS: usize = 20;
    let factory: Factory = caps::any()?;
    let make = || Ok::<_, Failure>(factory.endpoint().doing("make an endpoint")?.into_cap().into_id());
    let mut first = make()?;
    let mut threads = Vec::with_capacity(THREADS);
    for _ in 0..THREADS {
        // The endpoint that was the beginning so far becomes the end of this thread's part.
        let mut mine = Vec::with_capacity(EACH + 1);
        for _ in 0..EACH {
            mine.push(make()?);
        }
        mine.push(first);
        first = mine[0];
        let made = Arc::new(AtomicBool::new(false));
        let say = Arc::clone(&made);
        let calls = move || -> Outcome {
            let mut pending = Vec::with_capacity(EACH);
            // From the end of the chain to its beginning: a capability that was moved cannot be called any more.
            for at in (0..EACH).rev() {
                let sqe = Sqe {
                    op: Op::Call as u8,
                    cap: mine[at].0,
                    flags: flags::INLINE | flags::MOVE,
                    xfer: mine[at + 1].0,
                    ..Sqe::default()
                };
                // SAFETY: names no memory.
                pending.push(unsafe { ring::start(sqe) }.map_err(rt::Error::from).doing("call")?);
            }
            say.store(true, Ordering::Release);
            for token in pending {
                let status = ring::wait(token).status;
                ensure!(status == Exception::Disconnected as i32, "a call in the chain ends with {status}");
            }
            Ok(())
        };
        threads.push(spawn(calls)?);
        kit::wait_until("a thread has called", || Ok(made.load(Ordering::Acquire)))?;
    }
    Cap::owned(first).release().doing("give the first up")?;
    for thread in threads {
        thread.join()??;
    }
    Ok(())
}

fn endpoint() -> Outcome<Arc<Endpoint>> {
    Ok(Arc::new(caps::any::<Factory>()?.endpoint().doing("make an endpoint")?))
}

fn spawn<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> Outcome<JoinHandle<T>> {
    Builder::new().spawn(f).doing("spawn a thread")
}

/// A server that answers bytes with the same bytes, reversed, until it is called with method 0.
fn mirror(endpoint: &Arc<Endpoint>) -> Outcome<JoinHandle<Outcome>> {
    let endpoint = Arc::clone(endpoint);
    spawn(move || {
        let mut buffer = rt::message_buffer();
        let mut call = endpoint.recv(&mut buffer[..]).doing("receive")?;
        loop {
            if call.method == 0 {
                return endpoint.reply(call.token, Answer::Words([0; 2])).doing("the last answer");
            }
            let reply = match call.message {
                Message::Inline([first, second]) => vec_of_words([second, first]),
                Message::Bytes(len) => buffer[..len].iter().rev().copied().collect(),
            };
            let answer = match call.message {
                Message::Inline(_) => Answer::Words(words_of(&reply)),
                Message::Bytes(_) => Answer::Bytes(&reply),
            };
            call = endpoint.reply_recv(call.token, answer, &mut buffer[..]).doing("answer and receive")?;
        }
    })
}

fn vec_of_words(words: [u64; 2]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn words_of(bytes: &[u8]) -> [u64; 2] {
    let word = |at: usize| bytes[at..at + 8].iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    [word(0), word(8)]
}

fn messages() -> Outcome {
    let endpoint = endpoint()?;
    let server = mirror(&endpoint)?;
    let mut random = Random::new(1);
    let mut reply = rt::message_buffer();
    for len in [0, 1, 7, 8, 63, 64, 255, 256, 257, 4095, MAX_MESSAGE_BYTES] {
        for _ in 0..4 {
            let message: Vec<u8> = (0..len).map(|_| random.word() as u8).collect();
            let answer = endpoint.call_bytes(3, &message, &mut reply[..]).doing("call")?;
            ensure!(answer.len() == len, "{len} bytes came back as {}", answer.len());
            let is_mirrored = message.iter().rev().eq(reply[..len].iter());
            ensure!(is_mirrored, "a message of {len} bytes came back changed");
        }
    }
    for n in 0..500 {
        let words = endpoint.call(3, [n, !n]).doing("call")?;
        ensure!(words == [!n, n], "words {n} came back as {words:x?}");
    }
    endpoint.call(0, [0; 2]).doing("the last call")?;
    server.join()?
}

fn too_long() -> Outcome {
    let endpoint = endpoint()?;
    let message = vec![0; MAX_MESSAGE_BYTES + 1];
    let mut room = vec![0; MAX_MESSAGE_BYTES + 1];
    let small = &mut [0; 16];
    refused("4097 bytes", endpoint.call_bytes(1, &message, small), TransportError::TooLong)?;
    refused("room for 4097 bytes", endpoint.call_bytes(1, &[], &mut room), TransportError::TooLong)?;
    refused("a receiver of 4097 bytes", endpoint.recv(&mut room), TransportError::TooLong)?;
    // Method numbers have 16 bits.
    let sqe = Sqe { op: Op::Call as u8, cap: endpoint.cap().id().0, method: 1 << 16, ..Sqe::default() };
    // SAFETY: names no memory.
    let cqe = unsafe { ring::run(sqe) };
    ensure!(cqe.status == TransportError::BadFlags as i32, "method 65536: {cqe:?}");
    // A receiver whose buffer is too short, or not mapped, loses its turn; the call goes to the next receiver.
    let calling = endpoint.call_bytes_start(5, &[7; 100], 100)?;
    refused("a short receiver", endpoint.recv(&mut [0; 99]), TransportError::TooLong)?;
    for address in [0, 0xffff_ffff_8010_0000, 0x7fff_ffff_0000] {
        let op = Op::Recv as u8;
        let cap = endpoint.cap().id().0;
        let sqe = Sqe { op, cap, result_addr: address, result_len: 200, ..Sqe::default() };
        // SAFETY: the kernel must refuse the address.
        let cqe = unsafe { ring::run(sqe) };
        ensure!(cqe.status == TransportError::BadAddress as i32, "a receiver at {address:#x}: {cqe:?}");
    }
    let mut buffer = [0; 100];
    let call = endpoint.recv(&mut buffer).doing("the third receiver")?;
    ensure!(call.message == Message::Bytes(100) && buffer == [7; 100], "it got {:?}", call.message);
    // An answer that does not fit is an error at the caller, not at the server.
    endpoint.reply(call.token, Answer::Bytes(&[1; 101])).doing("a long answer")?;
    refused("an answer of 101 bytes", calling.wait(), TransportError::TooLong)?;
    // A message at a bad address is never sent.
    let bad = Sqe { addr: 0xffff_ffff_8010_0000, len: 8, method: 1, ..sqe };
    // SAFETY: the kernel must refuse the address.
    let cqe = unsafe { ring::run(bad) };
    ensure!(cqe.status == TransportError::BadAddress as i32, "a message of the kernel's: {cqe:?}");
    refused("nobody called", endpoint.recv_start(0)?.cancel(), TransportError::Cancelled)
}

fn exceptions() -> Outcome {
    const KINDS: [Exception; 5] = [
        Exception::Failed,
        Exception::Overloaded,
        Exception::Disconnected,
        Exception::InvalidArgument,
        Exception::Unimplemented,
    ];
    let endpoint = endpoint()?;
    let theirs = Arc::clone(&endpoint);
    let server = spawn(move || -> Outcome {
        for (n, kind) in KINDS.iter().enumerate() {
            let call = theirs.recv(&mut [0; 16]).doing("receive")?;
            theirs.reply(call.token, Answer::Raise(*kind, &format!("text number {n}"))).doing("raise")?;
        }
        let call = theirs.recv(&mut [0; 16]).doing("receive")?;
        theirs.reply(call.token, Answer::Raise(Exception::Failed, &"x".repeat(200))).doing("raise")?;
        // There is no sixth kind.
        let sqe = Sqe { op: Op::Return as u8, cap: theirs.cap().id().0, method: 6, ..Sqe::default() };
        // SAFETY: names no memory.
        let cqe = unsafe { ring::run(sqe) };
        ensure!(cqe.status == TransportError::BadFlags as i32, "exception 6: {cqe:?}");
        Ok(())
    })?;
    for (n, kind) in KINDS.iter().enumerate() {
        match endpoint.call(1, [0; 2]) {
            Err(rt::Error::Exception { kind: raised, message })
                if raised == *kind && message.as_str() == format!("text number {n}") => {}
            other => return Err(Failure::new(format_args!("{kind:?} arrived as {other:?}"))),
        }
    }
    // A text that is longer than the caller's room is cut.
    match endpoint.call(1, [0; 2]) {
        Err(rt::Error::Exception { kind: Exception::Failed, message })
            if message.as_str().starts_with("xxx") => {}
        other => return Err(Failure::new(format_args!("a long text arrived as {other:?}"))),
    }
    server.join()?
}

// ---- capabilities ---------------------------------------------------------------------------------------------------------

fn transfers() -> Outcome {
    let factory: Factory = caps::any()?;
    let endpoint = endpoint()?;
    let theirs = Arc::clone(&endpoint);
    // Gives back what it gets: copied if the method is 1, moved if it is 2.
    let server = spawn(move || -> Outcome {
        loop {
            let call = theirs.recv(&mut [0; 16]).doing("receive")?;
            let Some(cap) = call.cap else {
                return theirs.reply(call.token, Answer::Words([0; 2])).doing("the last answer");
            };
            let id = cap.id();
            let give = if call.method == 1 { Give::Copy(&cap) } else { Give::Move(Cap::owned(id)) };
            theirs.reply_giving(call.token, Answer::Words([1, 2]), give).doing("answer")?;
            let gone: MemoryObject = kit::client(id);
            if call.method == 2 {
                refused("what the server moved away", gone.bytes(), TransportError::BadCap)?;
                core::mem::forget(cap);
            } else {
                gone.bytes().doing("what the server copied")?;
            }
        }
    })?;
    let mut reply = [0; 32];
    for pages in 1..=4 {
        let object = factory.memory_object(pages * 4096)?;
        let copied = endpoint.call_giving(1, &[], &mut reply, Give::Copy(object.cap())).doing("copy")?;
        let copied = MemoryObject::of(copied.cap.ok_or_else(|| Failure::new("no capability came back"))?);
        ensure!(copied.bytes()? == pages * 4096, "another object came back");
        ensure!(object.bytes()? == pages * 4096, "the copied capability is not what it was");
        let id = object.cap().id();
        let moved = endpoint.call_giving(2, &[], &mut reply, Give::Move(object.into_cap())).doing("move")?;
        refused("what was moved away", kit::client::<MemoryObject>(id).bytes(), TransportError::BadCap)?;
        let moved = MemoryObject::of(moved.cap.ok_or_else(|| Failure::new("no capability came back"))?);
        ensure!(moved.bytes()? == pages * 4096, "another object came back");
    }
    endpoint.call(0, [0; 2]).doing("the last call")?;
    server.join()??;
    // A refused message leaves the capability that it would have moved in place.
    let object = factory.memory_object(4096)?;
    let id = object.cap().id();
    let sqe = Sqe { op: Op::Return as u8, cap: endpoint.cap().id().0, xfer: id.0, ..Sqe::default() };
    // SAFETY: names no memory.
    let cqe = unsafe { ring::run(Sqe { flags: flags::INLINE | flags::MOVE, result_addr: 1 << 32, ..sqe }) };
    ensure!(cqe.status == TransportError::BadToken as i32, "an answer to nobody: {cqe:?}");
    object.bytes().doing("a capability in a refused answer")?;
    // MOVE without a capability, and capabilities that do not exist.
    let call = Sqe { op: Op::Call as u8, cap: endpoint.cap().id().0, flags: flags::INLINE, ..Sqe::default() };
    let cases = [
        ("nothing", Sqe { flags: flags::INLINE | flags::MOVE, ..call }, TransportError::BadFlags),
        ("a number that no capability has", Sqe { xfer: 0xffff_ffff, ..call }, TransportError::BadCap),
        ("generation 0", Sqe { xfer: 3, ..call }, TransportError::BadCap),
    ];
    for (what, sqe, want) in cases {
        // SAFETY: names no memory.
        let cqe = unsafe { ring::run(sqe) };
        ensure!(cqe.status == want as i32, "moving {what}: {cqe:?} instead of {want:?}");
    }
    Ok(())
}

fn badges() -> Outcome {
    let endpoint = endpoint()?;
    let theirs = Arc::clone(&endpoint);
    let server = spawn(move || {
        theirs.serve(|call| {
            if call.method == 0 { Break([0; 2]) } else { Continue([call.badge.into(), call.method.into()]) }
        })
    })?;
    let first = endpoint.caller(0xb1)?;
    let second = endpoint.caller(u32::MAX)?;
    ensure!(endpoint.call(1, [0; 2])? == [0, 1], "the owner has a badge");
    ensure!(first.call(2, [0; 2])? == [0xb1, 2], "the first caller's badge");
    ensure!(second.call(u16::MAX, [0; 2])? == [u32::MAX.into(), u64::from(u16::MAX)], "the second caller's");
    // A badge cannot be changed by copying.
    refused("another badge", first.cap().copy(rights::CALL, 0xb2), TransportError::NotPermitted)?;
    let copy = Endpoint::of(first.cap().copy(rights::CALL, 0)?);
    ensure!(copy.call(3, [0; 2])? == [0xb1, 3], "a copy's badge");
    endpoint.call(0, [0; 2])?;
    server.join()?.doing("serve")
}

fn full_receiver() -> Outcome {
    let endpoint = endpoint()?;
    let object = caps::any::<Factory>()?.memory_object(4096)?;
    let calling_thread = {
        let theirs = Arc::clone(&endpoint);
        let cap = object.cap().id();
        spawn(move || {
            theirs.call_giving(4, &[], &mut [0; 16], Give::Copy(&Cap::borrowed(cap))).map(|r| r.words())
        })?
    };
    kit::wait_until("the call waits", || Ok(kit::thread_count()? == 2))?;
    time::sleep(5 * MS)?;
    let mut copies = kit::fill_caps(object.cap(), rights::CALL)?;
    for _ in 0..3 {
        refused("a receiver without a slot", endpoint.recv(&mut []), TransportError::NoSpace)?;
    }
    copies.pop();
    let call = endpoint.recv(&mut []).doing("a receiver with a slot")?;
    let cap = call.cap.ok_or_else(|| Failure::new("the capability did not arrive"))?;
    ensure!(MemoryObject::of(cap).bytes()? == 4096, "another object arrived");
    endpoint.reply(call.token, Answer::Words([5, 6]))?;
    drop(copies);
    let words = calling_thread.join()?.doing("the call")?;
    ensure!(words == [5, 6], "it was answered with {words:?}");
    Ok(())
}

// ---- failures -------------------------------------------------------------------------------------------------------------

fn cancels() -> Outcome {
    let endpoint = endpoint()?;
    for _ in 0..20 {
        let waiting = endpoint.call_start(1, [1, 1])?;
        refused("a waiting call", waiting.cancel(), TransportError::Cancelled)?;
        let calling = endpoint.call_start(2, [2, 2])?;
        let call = endpoint.recv(&mut []).doing("receive")?;
        ensure!(call.method == 2, "the withdrawn call {} was received", call.method);
        refused("a call in flight", calling.cancel(), TransportError::Cancelled)?;
        let late = endpoint.reply(call.token, Answer::Words([3, 3]));
        refused("an answer to a withdrawn call", late, TransportError::BadToken)?;
        refused("a receiver", endpoint.recv_start(64)?.cancel(), TransportError::Cancelled)?;
    }
    // Cancelled and answered at about the same time: exactly one of both happens.
    let theirs = Arc::clone(&endpoint);
    let server = spawn(move || {
        theirs.serve(|call| if call.method == 0 { Break([0; 2]) } else { Continue(call.message.words()) })
    })?;
    let (mut answered, mut withdrawn) = (0, 0);
    for n in 0..300 {
        let calling = endpoint.call_start(1, [n, n])?;
        for _ in 0..n % 16 * 20 {
            core::hint::spin_loop();
        }
        match calling.cancel() {
            Ok(reply) if reply.words() == [n, n] => answered += 1,
            Err(error) if error.transport() == Some(TransportError::Cancelled) => withdrawn += 1,
            other => return Err(Failure::new(format_args!("call {n} ended as {other:?}"))),
        }
    }
    println!("    300 calls withdrawn under way: {answered} were answered first, {withdrawn} not");
    endpoint.call(0, [0; 2])?;
    server.join()?.doing("serve")
}

fn disconnected(what: &str, calling: Pending<Reply>) -> Outcome {
    raised(what, calling.wait(), Exception::Disconnected)
}

fn server_thread_ends() -> Outcome {
    let endpoint = endpoint()?;
    for round in 0..10 {
        let calls: Vec<_> = (0..3).map(|n| endpoint.call_start(n, [0; 2])).collect::<rt::Result<_>>()?;
        let theirs = Arc::clone(&endpoint);
        // Receives two calls and answers none. A receive that it leaves under way ends with it.
        let server = spawn(move || -> Outcome {
            theirs.recv(&mut []).doing("receive")?;
            theirs.recv(&mut []).doing("receive")?;
            Ok(())
        })?;
        server.join()??;
        let mut calls = calls.into_iter();
        for _ in 0..2 {
            let Some(calling) = calls.next() else { break };
            disconnected("a call whose server thread has ended", calling)?;
        }
        // The third call was not received yet, and another thread serves it.
        let call = endpoint.recv(&mut []).doing("receive the third")?;
        ensure!(call.method == 2, "round {round}: method {} was left", call.method);
        endpoint.reply(call.token, Answer::Words([9, 9]))?;
        let reply = calls.next().map(Pending::wait).transpose()?;
        ensure!(reply.is_some_and(|reply| reply.words() == [9, 9]), "the third call's answer");
    }
    // Threads that end while they wait to receive: no call is lost on them.
    for _ in 0..20 {
        let theirs = Arc::clone(&endpoint);
        let idle = spawn(move || theirs.recv_start(8).map(core::mem::forget))?;
        let calling = endpoint.call_start(7, [7, 7])?;
        idle.join()?.doing("start a receiver")?;
        let mut receiving = endpoint.recv_start(0)?;
        match receiving.wait_timeout(20 * MS) {
            Some(call) => {
                endpoint.reply(call?.token, Answer::Words([8, 8]))?;
                calling.wait().doing("the call")?;
            }
            // The call was delivered to the thread before that ended.
            None => {
                disconnected("a call to a thread that ended", calling)?;
                refused("the receiver", receiving.cancel(), TransportError::Cancelled)?;
            }
        }
    }
    Ok(())
}

/// Role `taker`: receives calls and answers none.
fn taker() -> i64 {
    let take = || -> Outcome {
        let endpoint: Endpoint = caps::get("served")?;
        loop {
            endpoint.recv(&mut [0; 64]).doing("receive")?;
        }
    };
    i64::from(take().is_err())
}

fn server_process_ends() -> Outcome {
    let mut before = Usage::now()?;
    for round in 0..4 {
        let endpoint = endpoint()?;
        let calls: Vec<_> = (0..8).map(|n| endpoint.call_start(n, [0; 2])).collect::<rt::Result<_>>()?;
        let child = kit::again(&["taker"], &[("served", endpoint.cap(), rights::RECV, 0)])?;
        // All eight are in flight when nothing is left to receive.
        kit::wait_until("the child takes the calls", || {
            let mut receiving = endpoint.recv_start(0)?;
            let got = receiving.wait_timeout(MS);
            match got {
                None => {
                    Ok(refused("nothing to receive", receiving.cancel(), TransportError::Cancelled).is_ok())
                }
                Some(call) => {
                    endpoint
                        .reply(call?.token, Answer::Raise(Exception::Disconnected, "taken by its maker"))?;
                    Ok(false)
                }
            }
        })?;
        child.handle.kill().doing("kill")?;
        let exit = child.wait().doing("wait")?;
        ensure!(exit.reason == rt::ExitReason::Killed, "the child: {exit}");
        for calling in calls {
            disconnected("a call whose server process was killed", calling)?;
        }
        // The endpoint itself has another server: this process.
        let calling = endpoint.call_start(1, [1, 1])?;
        let call = endpoint.recv(&mut []).doing("receive")?;
        endpoint.reply(call.token, Answer::Words([1, 2]))?;
        ensure!(calling.wait()?.words() == [1, 2], "round {round}: the endpoint does not go on");
        drop((child, endpoint));
        if round == 1 {
            before = Usage::settled()?;
        }
    }
    before.comes_back("after killed servers")
}

fn closed() -> Outcome {
    let mut before = Usage::now()?;
    for round in 0..6 {
        let endpoint = endpoint()?;
        let caller = endpoint.caller(1)?;
        let waiting: Vec<_> =
            (0..5).map(|n| caller.call_bytes_start(n, &[1; 3000], 100)).collect::<rt::Result<_>>()?;
        let in_flight = endpoint.recv(&mut rt::message_buffer()[..]).doing("receive")?;
        ensure!(in_flight.badge == 1, "badge {}", in_flight.badge);
        drop(endpoint);
        for calling in waiting {
            disconnected("a call to an endpoint that closes", calling)?;
        }
        raised("a call to a closed endpoint", caller.call(1, [0; 2]), Exception::Disconnected)?;
        drop(caller);
        if round == 1 {
            before = Usage::settled()?;
        }
    }
    before.comes_back("after closed endpoints")?;
    // One of two receiving capabilities is released: calls that this process did not answer fail only with the last one.
    let endpoint = endpoint()?;
    let second = Endpoint::of(endpoint.cap().copy(rights::RECV, 0)?);
    let calling = endpoint.call_start(1, [0; 2])?;
    let call = second.recv(&mut []).doing("receive")?;
    second.into_cap().release()?;
    endpoint.reply(call.token, Answer::Words([4, 4])).doing("answer by the other")?;
    ensure!(calling.wait()?.words() == [4, 4], "the call was not answered");
    Ok(())
}

fn overloaded() -> Outcome {
    const THREADS: usize = 36;
    const CALLS: usize = 30;
    let endpoint = endpoint()?;
    let caller = Arc::new(endpoint.caller(3)?);
    let (started, go) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let mut threads = Vec::new();
    for _ in 0..THREADS {
        let (caller, started, go) = (Arc::clone(&caller), Arc::clone(&started), Arc::clone(&go));
        let work = move || -> Outcome<(u32, u32)> {
            let calls: Vec<_> =
                (0..CALLS).map(|_| caller.call_start(1, [0; 2])).collect::<rt::Result<_>>()?;
            started.fetch_add(1, Ordering::AcqRel);
            while !go.load(Ordering::Acquire) {
                thread::yield_now();
            }
            let (mut over, mut gone) = (0, 0);
            for calling in calls {
                match calling.wait().err().and_then(|error| error.exception()) {
                    Some(Exception::Overloaded) => over += 1,
                    Some(Exception::Disconnected) => gone += 1,
                    other => return Err(Failure::new(format_args!("a call ended with {other:?}"))),
                }
            }
            Ok((over, gone))
        };
        threads.push(spawn(work)?);
    }
    kit::wait_until("all have called", || Ok(started.load(Ordering::Acquire) as usize == THREADS))?;
    drop(endpoint);
    go.store(true, Ordering::Release);
    let (mut over, mut gone) = (0, 0);
    for thread in threads {
        let (more_over, more_gone) = thread.join()??;
        (over, gone) = (over + more_over, gone + more_gone);
    }
    println!(
        "    of {} calls {gone} waited until the endpoint closed, {over} were too many",
        THREADS * CALLS
    );
    ensure!(over as usize == THREADS * CALLS - 1024, "{over} calls were too many");
    Ok(())
}

// ---- K-21 -----------------------------------------------------------------------------------------------------------------

fn revocation() -> Outcome {
    let factory: Factory = caps::any()?;
    let endpoint = endpoint()?;
    let (first, second) = (endpoint.caller(1)?, endpoint.caller(2)?);
    let server = Endpoint::of(endpoint.cap().copy(rights::RECV | rights::REVOKE, 0)?);
    endpoint.cap().revoke().doing("revoke")?;
    refused("a call", first.call(1, [0; 2]), TransportError::Revoked)?;
    refused("a receiver", server.recv(&mut []), TransportError::Revoked)?;
    refused("an answer", server.reply(1 << 32, Answer::Words([0; 2])), TransportError::Revoked)?;
    refused("a copy", second.cap().copy(rights::CALL, 0), TransportError::Revoked)?;
    refused("revoking by a revoked one", server.cap().revoke(), TransportError::Revoked)?;
    // The owner can go on, and copies that it makes now are valid.
    let third = endpoint.caller(3)?;
    let theirs = Arc::clone(&endpoint);
    let serving = spawn(move || theirs.serve(|call| Break([call.badge.into(), 0])))?;
    ensure!(third.call(1, [0; 2])? == [3, 0], "a capability made after the revocation");
    serving.join()?.doing("serve")?;
    // A revoked capability is still there to be released, once.
    let id = first.cap().id();
    first.into_cap().release().doing("release")?;
    refused("the released one", kit::client::<Endpoint>(id).call(1, [0; 2]), TransportError::BadCap)?;
    // A revoked receiver does not keep the endpoint open.
    drop(endpoint);
    raised("a call without servers", third.call(1, [0; 2]), Exception::Disconnected)?;
    // The same holds for memory.
    let memory = factory.memory_object(4096)?;
    let lent = MemoryObject::of(memory.cap().copy(rights::CALL, 0)?);
    lent.bytes()?;
    let at = lent.map(None, 0, 4096, false).doing("map lent memory")?;
    memory.cap().revoke().doing("revoke memory")?;
    refused("lent memory", lent.bytes(), TransportError::Revoked)?;
    ensure!(memory.bytes()? == 4096, "the owner's memory");
    // Memory that was mapped stays, and can be unmapped without the capability. Its protection cannot be changed without it.
    let space = rt::vm::space()?;
    // SAFETY: no code uses it.
    unsafe {
        refused("lent memory", lent.unmap(at, 4096), TransportError::Revoked)?;
        let stronger = space.protect(at, 4096, rt::Protection::READ_WRITE);
        raised("more access to lent memory", stronger, Exception::InvalidArgument)?;
        space.unmap(at, 4096).doing("unmap revoked memory")?;
    }
    refused(
        "revoking without the right",
        caps::any::<rt::Console>()?.cap().revoke(),
        TransportError::NotPermitted,
    )
}

/// Role `revoked`: waits for calls and has a call of its own under way when its capabilities are revoked.
fn revoked_child() -> Outcome {
    let served: Endpoint = caps::get("served")?;
    let called: Endpoint = caps::get("called")?;
    let call = served.recv(&mut []).doing("receive")?;
    let receiving = served.recv_start(0)?;
    let calling = called.call_start(1, [1, 1])?;
    // The parent sees that all is under way, and revokes.
    refused("the waiting receiver", receiving.wait(), TransportError::Revoked)?;
    refused("an answer", served.reply(call.token, Answer::Words([1, 1])), TransportError::Revoked)?;
    refused("the waiting call", calling.wait(), TransportError::Revoked)
}

fn revocation_under_way() -> Outcome {
    let (served, called) = (endpoint()?, endpoint()?);
    // The queue of `called` is not empty, so that the child's call waits behind this process's.
    let ours = called.call_start(1, [5, 5])?;
    let grants = [("served", served.cap(), rights::RECV, 0), ("called", called.cap(), rights::CALL, 0)];
    let child = kit::again(&["revoked"], &grants)?;
    let calling = served.call_start(1, [0; 2])?;
    let system = kit::system()?;
    kit::wait_until("the child waits", || {
        let threads = system.threads()?;
        let mut waiting = threads.iter().filter(|thread| thread.pid == child.pid);
        Ok(waiting.any(|thread| thread.state == rt::ThreadState::Blocked))
    })?;
    time::sleep(20 * MS)?;
    served.cap().revoke().doing("revoke")?;
    disconnected("a call whose server was revoked", calling)?;
    called.cap().revoke().doing("revoke")?;
    kit::succeeds("the child", &child)?;
    // This process's own call to its own endpoint goes on.
    let call = called.recv(&mut []).doing("receive our own")?;
    ensure!(call.message.words() == [5, 5], "another call was left: {:?}", call.message);
    called.reply(call.token, Answer::Words([6, 6]))?;
    ensure!(ours.wait()?.words() == [6, 6], "our own call");
    refused("nothing else", called.recv_start(0)?.cancel(), TransportError::Cancelled)
}

fn stale_numbers() -> Outcome {
    let factory: Factory = caps::any()?;
    let mut seen: Vec<CapId> = Vec::new();
    for round in 0..200 {
        let object = factory.memory_object(4096)?;
        let id = object.cap().id();
        ensure!(!seen.contains(&id), "round {round}: number {:#x} is given twice", id.0);
        for old in &seen {
            let gone: MemoryObject = kit::client(*old);
            refused("an old number", gone.bytes(), TransportError::BadCap)?;
        }
        object.into_cap().release()?;
        refused("released twice", Cap::owned(id).release(), TransportError::BadCap)?;
        if seen.len() < 10 {
            seen.push(id);
        }
    }
    let reused = seen.windows(2).filter(|pair| pair[0].index() == pair[1].index()).count();
    ensure!(reused > 0, "no slot was used again, so this showed nothing");
    Ok(())
}

fn missing_rights() -> Outcome {
    let endpoint = endpoint()?;
    let caller = Endpoint::of(endpoint.cap().copy(rights::CALL, 0)?);
    let receiver = Endpoint::of(endpoint.cap().copy(rights::RECV, 0)?);
    let nothing = Endpoint::of(endpoint.cap().copy(0, 0)?);
    let denied = TransportError::NotPermitted;
    refused("a caller receives", caller.recv(&mut []), denied)?;
    refused("a caller answers", caller.reply(1 << 32, Answer::Words([0; 2])), denied)?;
    refused("a receiver calls", receiver.call(1, [0; 2]), denied)?;
    refused("nobody calls", nothing.call(1, [0; 2]), denied)?;
    refused("a caller copies", caller.cap().copy(rights::CALL, 0), denied)?;
    refused("a caller revokes", caller.cap().revoke(), denied)?;
    let give = Give::Copy(caller.cap());
    refused("a caller passes itself on", endpoint.call_giving(1, &[], &mut [], give), denied)?;
    let granting = Endpoint::of(endpoint.cap().copy(rights::CALL | rights::GRANT, 0)?);
    refused("more rights than one has", granting.cap().copy(rights::CALL | rights::RECV, 0), denied)?;
    refused("rights that do not exist", endpoint.cap().copy(1 << 15, 0), TransportError::BadFlags)?;
    let spawned = kit::again(&["taker"], &[("served", caller.cap(), rights::CALL, 0)]);
    ensure!(spawned.is_err(), "a capability without GRANT was given to a child");
    let spawned = kit::again(&["taker"], &[("served", granting.cap(), rights::RECV, 0)]);
    ensure!(spawned.is_err(), "a child was given more rights than its parent has");
    // Operations of other interfaces.
    let console: rt::Console = caps::any()?;
    refused("a console receives", kit::client::<Endpoint>(console.cap().id()).recv(&mut []), denied)?;
    let mute = rt::Console::of(console.cap().copy(0, 0)?);
    refused("a console without a right writes", mute.write(b"never seen"), denied)?;
    let memory = caps::any::<Factory>()?.memory_object(4096)?;
    let readable = MemoryObject::of(memory.cap().copy(rights::CALL, 0)?);
    let mapped = readable.map(None, 0, 4096, true);
    ensure!(mapped.is_err(), "memory was mapped writable without the right");
    readable.map(None, 0, 4096, false).doing("map readable")?;
    Ok(())
}

/// Role `forger`: answers a token that another process received.
fn forger(token: Option<&str>) -> Outcome {
    let token: u64 = token.and_then(|text| text.parse().ok()).ok_or_else(|| Failure::new("no token"))?;
    let endpoint: Endpoint = caps::get("served")?;
    for near in [token, token + 1, token ^ 1 << 32] {
        refused("a foreign token", endpoint.reply(near, Answer::Words([6, 6])), TransportError::BadToken)?;
    }
    Ok(())
}

fn tokens() -> Outcome {
    let endpoint = endpoint()?;
    let other = self::endpoint()?;
    for token in [0, 1, 1 << 32, u64::MAX, 0xdead_beef] {
        let answered = endpoint.reply(token, Answer::Words([0; 2]));
        refused("a token that never was", answered, TransportError::BadToken)?;
    }
    let calling = endpoint.call_start(1, [0; 2])?;
    let call = endpoint.recv(&mut []).doing("receive")?;
    let elsewhere = other.reply(call.token, Answer::Words([0; 2]));
    refused("a token of another endpoint", elsewhere, TransportError::BadToken)?;
    let child =
        kit::again(&["forger", &format!("{}", call.token)], &[("served", endpoint.cap(), rights::RECV, 0)])?;
    kit::succeeds("the forger", &child)?;
    endpoint.reply(call.token, Answer::Words([7, 7])).doing("the real answer")?;
    ensure!(calling.wait()?.words() == [7, 7], "the answer was forged");
    refused("a second answer", endpoint.reply(call.token, Answer::Words([0; 2])), TransportError::BadToken)
}

// ---- many -----------------------------------------------------------------------------------------------------------------

/// Processes that call, threads of each, and calls of each thread.
const CLIENTS: u32 = 3;
const CLIENT_THREADS: u64 = 3;
const CALLS: u64 = 150;
/// Processes that serve, and threads of each.
const SERVERS: usize = 2;
const SERVER_THREADS: usize = 3;

fn checksum(bytes: &[u8], salt: u64) -> u64 {
    bytes.iter().fold(salt ^ 0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Role `server`: answers words with their checksum, bytes with checksum and themselves, until the endpoint closes.
fn storm_server() -> Outcome {
    let serve = || -> Outcome<u64> {
        let endpoint: Endpoint = caps::get("served")?;
        let mut buffer = rt::message_buffer();
        let mut answered = 0;
        let mut next = endpoint.recv(&mut buffer[..]);
        loop {
            let call = match next {
                Ok(call) => call,
                Err(error) if error.transport() == Some(TransportError::Cancelled) => return Ok(answered),
                Err(error) if error.transport() == Some(TransportError::Revoked) => return Ok(answered),
                Err(error) => return Err(error.into()),
            };
            let badge = u64::from(call.badge);
            let reply;
            let answer = match call.message {
                Message::Inline(words) => Answer::Words([checksum(&vec_of_words(words), badge), badge]),
                Message::Bytes(len) => {
                    let sum = checksum(&buffer[..len], badge);
                    reply = [&sum.to_le_bytes()[..], &buffer[..len]].concat();
                    Answer::Bytes(&reply)
                }
            };
            answered += 1;
            next = endpoint.reply_recv(call.token, answer, &mut buffer[..]);
        }
    };
    let mut threads = Vec::new();
    for _ in 1..SERVER_THREADS {
        threads.push(spawn(serve)?);
    }
    let mut answered = serve()?;
    for thread in threads {
        answered += thread.join()??;
    }
    println!("    a server process answered {answered} calls");
    Ok(())
}

/// Role `client`: calls and checks.
fn storm_client(badge: Option<&str>) -> Outcome {
    let badge: u64 = badge.and_then(|text| text.parse().ok()).ok_or_else(|| Failure::new("no badge"))?;
    let work = move |seed: u64| -> Outcome {
        let endpoint: Endpoint = caps::get("called")?;
        let mut random = Random::new(badge << 8 | seed);
        let mut reply = rt::message_buffer();
        for n in 0..CALLS {
            if n % 3 > 0 {
                let words = [random.word(), random.word()];
                let [sum, who] = endpoint.call(1, words).doing("call")?;
                let want = checksum(&vec_of_words(words), badge);
                ensure!(sum == want && who == badge, "call {n} was answered with another's answer");
                continue;
            }
            let len = random.below(MAX_MESSAGE_BYTES as u64 - 8) as usize;
            let message: Vec<u8> = (0..len).map(|_| random.word() as u8).collect();
            let answer = endpoint.call_bytes(1, &message, &mut reply[..]).doing("call")?;
            let want = checksum(&message, badge).to_le_bytes();
            ensure!(answer.len() == len + 8, "call {n}: {} bytes for {len}", answer.len());
            ensure!(reply[..8] == want && reply[8..len + 8] == message[..], "call {n}: another's answer");
        }
        Ok(())
    };
    let threads: Vec<_> =
        (1..CLIENT_THREADS).map(|seed| spawn(move || work(seed))).collect::<Outcome<_>>()?;
    work(0)?;
    threads.into_iter().try_for_each(|thread| thread.join()?)
}

fn storm() -> Outcome {
    let endpoint = endpoint()?;
    let mut servers = Vec::new();
    for _ in 0..SERVERS {
        servers.push(kit::again(&["server"], &[("served", endpoint.cap(), rights::RECV, 0)])?);
    }
    let before = time::now_ns()?;
    let mut clients = Vec::new();
    for badge in 1..=CLIENTS {
        let grant = ("called", endpoint.cap(), rights::CALL, badge);
        clients.push(kit::again(&["client", &format!("{badge}")], &[grant])?);
    }
    for client in &clients {
        kit::succeeds("a client", client)?;
    }
    let took = time::now_ns()? - before;
    let total = u64::from(CLIENTS) * CLIENT_THREADS * CALLS;
    println!("    {total} calls of {CLIENTS} processes to {SERVERS} in {} ms", took / MS);
    // When all capabilities to receive are revoked, the servers end.
    endpoint.cap().revoke().doing("revoke")?;
    for server in &servers {
        kit::succeeds("a server", server)?;
    }
    Ok(())
}
