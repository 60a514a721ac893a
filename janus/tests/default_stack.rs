//! J-06: a task that says nothing of its stack has enough for what programs do: names are resolved, TLS connections are made,
//! panics format themselves and print a backtrace. Each runs in a process of its own, whose environment says how.
//!
//! The certificates in `janus/tests/tls` were made once, by openssl, for this test: an authority, and a certificate for
//! `localhost` by it, with its key; they end in a hundred years, and protect nothing.

mod common;

use common::{moving, within};
use janus::{Cx, NurseryOptions, Receiver, Runtime, Sender, StackClass, TaskError, channel};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use rustls::{ConnectionCommon, SideData, SupportedProtocolVersion};
use std::net::ToSocketAddrs;
use std::ops::DerefMut;
use std::process::{Command, Output};
use std::sync::Arc;

/// Runs one of the ignored tests of this file in a process of its own.
fn alone(test: &str, environment: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]).envs(environment.iter().copied());
    let output = command.output().unwrap();
    let shown = format!("{}{}", text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{test}: {}\n{shown}", output.status);
    assert!(shown.contains("1 passed"), "{test} ran: {shown}");
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// No task overflowed, and none was abandoned.
fn assert_fine(rt: &Runtime) {
    let stats = rt.stats();
    assert_eq!((stats.total.overflows, stats.stacks_abandoned), (0, 0));
}

#[test]
#[ignore = "run by another in a process of its own"]
fn names_are_resolved_here() {
    within(|| {
        let rt = moving(2);
        let found = rt.run(|cx| {
            cx.nursery(|n| {
                let resolve =
                    |name: &'static str| n.spawn(move |_| (name, 80).to_socket_addrs().map(Iterator::count));
                // A name of the hosts file, and a number: nothing that a server elsewhere would be asked for.
                let tasks = ["localhost", "127.0.0.1"].map(resolve);
                Ok(tasks.map(|task| task.join(cx).unwrap().ok()))
            })
        });
        let [local, number] = found.unwrap().unwrap();
        assert!(local.is_some_and(|count| count > 0) && number == Some(1));
        assert_fine(&rt);
    });
}

#[test]
fn j_06_a_default_task_resolves_names() {
    alone("names_are_resolved_here", &[]);
}

/// One end of a connection: shakes hands over two channels, then says so to the other end and hears it.
fn shake<Side, C>(cx: &Cx, mut end: C, out: &Sender<Vec<u8>>, from: &Receiver<Vec<u8>>) -> bool
where
    C: DerefMut<Target = ConnectionCommon<Side>>,
    Side: SideData,
{
    let mut said = false;
    let mut heard = Vec::new();
    while heard != b"hello" || !said {
        if !end.is_handshaking() && !said {
            std::io::Write::write_all(&mut end.writer(), b"hello").unwrap();
            said = true;
        }
        let mut bytes = Vec::new();
        while end.wants_write() {
            end.write_tls(&mut bytes).unwrap();
        }
        if !bytes.is_empty() {
            out.send(cx, bytes).unwrap();
        } else if heard != b"hello" {
            let bytes = from.recv(cx).unwrap();
            let mut bytes = &bytes[..];
            while !bytes.is_empty() {
                end.read_tls(&mut bytes).unwrap();
                let state = end.process_new_packets().unwrap();
                let mut plain = vec![0; state.plaintext_bytes_to_read()];
                std::io::Read::read_exact(&mut end.reader(), &mut plain).unwrap();
                heard.extend(plain);
            }
        }
    }
    true
}

fn client(version: &'static SupportedProtocolVersion) -> ClientConnection {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(&include_bytes!("tls/ca.der")[..])).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let config = config.with_protocol_versions(&[version]).unwrap();
    let config = config.with_root_certificates(roots).with_no_client_auth();
    ClientConnection::new(Arc::new(config), "localhost".try_into().unwrap()).unwrap()
}

fn server(version: &'static SupportedProtocolVersion) -> ServerConnection {
    let chain = vec![CertificateDer::from(&include_bytes!("tls/leaf.der")[..])];
    let key = PrivateKeyDer::try_from(&include_bytes!("tls/leaf.key.der")[..]).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()));
    let config = config.with_protocol_versions(&[version]).unwrap();
    ServerConnection::new(Arc::new(config.with_no_client_auth().with_single_cert(chain, key).unwrap()))
        .unwrap()
}

/// A server and a client make a connection, each in a task, with the default stack or another.
fn connect(
    rt: &Runtime,
    version: &'static SupportedProtocolVersion,
    stack: Option<StackClass>,
) -> [Result<bool, TaskError>; 2] {
    let mut ends = None;
    let result = rt.run(|cx| {
        cx.nursery_with(NurseryOptions::new().keep_going(), |n| {
            let ((to_server, at_server), (to_client, at_client)) = (channel(4), channel(4));
            let task = || match stack {
                Some(class) => n.task().stack(class).owned(),
                None => n.task().owned(),
            };
            let serve = move |cx: &Cx| shake(cx, server(version), &to_client, &at_server);
            let serve = task().spawn(serve);
            let call = task().spawn(move |cx| shake(cx, client(version), &to_server, &at_client));
            ends = Some([serve.join(cx), call.join(cx)]);
            Ok(())
        })
    });
    // The nursery fails as its children do.
    let _ = result.unwrap();
    ends.expect("both were joined")
}

#[test]
fn j_06_a_default_task_shakes_hands_by_tls() {
    within(|| {
        let rt = moving(2);
        for version in [&rustls::version::TLS13, &rustls::version::TLS12] {
            let ends = connect(&rt, version, None);
            assert!(matches!(ends, [Ok(true), Ok(true)]), "{:?}: {ends:?}", version.version);
        }
        assert_fine(&rt);
    });
}

/// The specification's 8 KiB do not suffice, and end as they should: the tests above can fail.
#[test]
fn j_06_a_lean_task_does_not_shake_hands_by_tls() {
    within(|| {
        let ends = connect(&moving(2), &rustls::version::TLS13, Some(StackClass::SPECIFIED));
        assert!(ends.iter().any(|end| matches!(end, Err(TaskError::StackOverflow))), "{ends:?}");
    });
}

/// Something whose `Debug` has work to do.
#[derive(Debug)]
#[allow(dead_code, reason = "it is there to be printed")]
struct Nested {
    name: String,
    numbers: Vec<Option<(u8, f64)>>,
    inner: Option<Box<Nested>>,
}

#[test]
#[ignore = "run by another in a process of its own"]
fn a_panic_is_formatted_here() {
    within(|| {
        let rt = moving(2);
        let mut ended = None;
        let result = rt.run(|cx| {
            cx.nursery(|n| {
                let panics = |_: &Cx| -> () {
                    let inner = Nested { name: "inner".into(), numbers: Vec::new(), inner: None };
                    let numbers = vec![None, Some((1, 2.5)), Some((2, f64::MAX))];
                    let nested = Nested { name: "outer".into(), numbers, inner: Some(Box::new(inner)) };
                    panic!("it was {nested:#?}, and {:e}", 1e300);
                };
                ended = Some(n.spawn(panics).join(cx));
                Ok(())
            })
        });
        // The nursery fails as its child does.
        let _ = result.unwrap();
        assert!(matches!(&ended, Some(Err(TaskError::Panicked(why))) if why.contains("inner")), "{ended:?}");
        assert_fine(&rt);
        // A task that captures a backtrace and prints it by itself.
        let printed = rt.run(|cx| {
            cx.nursery(|n| {
                let capture = |_: &Cx| std::backtrace::Backtrace::force_capture().to_string().len();
                n.spawn(capture).join(cx)
            })
        });
        assert!(printed.unwrap().unwrap() > 100);
        assert_fine(&rt);
    });
}

#[test]
fn j_06_a_default_task_panics_with_a_backtrace() {
    let output = alone("a_panic_is_formatted_here", &[("RUST_BACKTRACE", "full")]);
    let shown = text(&output.stderr);
    assert!(shown.contains("stack backtrace:") && shown.contains("a_panic_is_formatted_here"), "{shown}");
}
