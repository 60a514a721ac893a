//! The servers of `make bench-io` on tokio: an echo server, and one with hyper. The protocol is described in `bench::io`.
#![forbid(unsafe_code)]

use std::convert::Infallible;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let workers = arguments.get(1).and_then(|workers| workers.parse().ok()).unwrap_or(1);
    let http = arguments.first().is_some_and(|protocol| protocol == "http");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_io().build();
    runtime.expect("a runtime").block_on(async move {
        // On a worker, as ours: the thread that blocks on this only waits.
        tokio::spawn(listen(http)).await.expect("it serves until it is killed");
    });
}

async fn listen(http: bool) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    println!("{}", listener.local_addr().expect("an address").port());
    loop {
        let (stream, _peer) = listener.accept().await.expect("a connection");
        stream.set_nodelay(true).expect("no delay");
        if http {
            tokio::spawn(async move {
                let service = service_fn(hello);
                let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
            });
        } else {
            tokio::spawn(echo(stream));
        }
    }
}

fn hog() -> ! {
    loop {
        std::hint::spin_loop();
    }
}

async fn echo(mut stream: TcpStream) {
    let mut buffer = [0; 1024];
    loop {
        match stream.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(_) if buffer[0] == b'L' => hog(),
            Ok(got) => {
                if stream.write_all(&buffer[..got]).await.is_err() {
                    return;
                }
            }
        }
    }
}

async fn hello(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    if request.uri().path() == "/loop" {
        hog();
    }
    let mut response = Response::new(Full::new(Bytes::from_static(b"Hello, World!")));
    response.headers_mut().insert("content-type", hyper::header::HeaderValue::from_static("text/plain"));
    Ok(response)
}
