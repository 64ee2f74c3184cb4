//! Sockets, and responses with faults applied.
//!
//! hyper on one thread with its own runtime: the answers come from memory, and sleeping costs a timer
//! only, so one thread serves as many clients as a test starts. A dropped server closes every
//! connection at once.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{self, StreamExt as _};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Response, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::sync::oneshot;

use crate::fault::Fault;
use crate::log::{LoggedRequest, request_line};
use crate::reply::Reply;
use crate::routes::{self, Request, Site};
use crate::store::Store;

/// What the server's thread and the test share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) site: Site,
    pub(crate) state: Mutex<State>,
}

/// What changes while the server runs.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) store: Store,
    pub(crate) faults: Vec<Fault>,
    pub(crate) log: Vec<LoggedRequest>,
}

impl Shared {
    /// The state. A test that panicked while it held the lock has failed already.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A running server.
#[derive(Debug)]
pub(crate) struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Opens a socket on a free port of the loopback interface.
    pub(crate) fn listen() -> io::Result<TcpListener> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    }

    /// Serves on a thread until dropped.
    pub(crate) fn start(listener: TcpListener, shared: Arc<Shared>) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let listener = {
            let _guard = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("hub-fixture".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = accept(listener, shared) => {}
                        _ = stopped => {}
                    }
                });
            })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // Fails only if the thread has ended already.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            // A panic there has shown itself in the test as a failed request.
            let _ = thread.join();
        }
    }
}

async fn accept(listener: tokio::net::TcpListener, shared: Arc<Shared>) {
    loop {
        // Errors here concern a connection that its client has given up.
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let shared = Arc::clone(&shared);
                async move { respond(request, &shared).await }
            });
            // Errors are closed connections: faults make them on purpose, clients when they stop.
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

type Body = UnsyncBoxBody<Bytes, io::Error>;

/// Answers one request. An error closes the connection.
async fn respond(
    request: hyper::Request<Incoming>,
    shared: &Shared,
) -> Result<Response<Body>, io::Error> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let query = parts.uri.query().unwrap_or_default().to_owned();
    let request = Request {
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        query: routes::decode_form(&query).into_iter().collect(),
        headers: lower_case(&parts.headers),
        body,
    };
    let line = request_line(&request.method, &request.path, &query);
    let fault = shared
        .state()
        .faults
        .iter_mut()
        .find_map(|fault| fault.applies(&line).then(|| fault.clone()));
    let fault = fault.unwrap_or_default();
    if let Some(duration) = fault.sleep {
        tokio::time::sleep(duration).await;
    }
    let reply = if fault.close {
        None
    } else {
        Some(reply(&request, &fault, shared))
    };
    shared.state().log.push(LoggedRequest {
        method: request.method.clone(),
        path: request.path,
        query,
        headers: request.headers,
        status: reply.as_ref().map(|reply| reply.status),
    });
    let Some(reply) = reply else {
        return Err(io::Error::other("the fault says to close the connection"));
    };
    let head_only = request.method == "HEAD";
    response(reply, &fault, head_only)
}

fn lower_case(headers: &HeaderMap) -> BTreeMap<String, String> {
    headers
        .iter()
        .map(|(name, value)| {
            (
                name.as_str().to_owned(),
                String::from_utf8_lossy(value.as_bytes()).into_owned(),
            )
        })
        .collect()
}

/// The answer, with those parts of a fault that change what it says.
fn reply(request: &Request, fault: &Fault, shared: &Shared) -> Reply {
    let mut reply = match fault.status {
        Some(status) => Reply::error(status, fault.error_code.as_deref(), "injected fault"),
        None => routes::answer(request, &shared.state().store, &shared.site),
    };
    if let Some(body) = &fault.body {
        reply.body = body.clone();
    }
    for (name, value) in &fault.headers {
        reply.set_header(name, value);
    }
    if fault.corrupt && !reply.body.is_empty() {
        let mut body = reply.body.to_vec();
        body[0] ^= 0xff;
        reply.body = body.into();
    }
    reply
}

/// Puts an answer on the wire, with those parts of a fault that change how.
fn response(reply: Reply, fault: &Fault, head_only: bool) -> Result<Response<Body>, io::Error> {
    let status = StatusCode::from_u16(reply.status).map_err(io::Error::other)?;
    let mut builder = Response::builder().status(status);
    let announced = reply
        .headers
        .iter()
        .any(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    if !announced {
        builder = builder.header("content-length", reply.body.len());
    }
    for (name, value) in &reply.headers {
        builder = builder.header(name, value);
    }
    let body = if head_only {
        whole(Bytes::new())
    } else {
        body(reply.body, fault)
    };
    builder.body(body).map_err(io::Error::other)
}

fn whole(bytes: Bytes) -> Body {
    Full::new(bytes)
        .map_err(|never: Infallible| match never {})
        .boxed_unsync()
}

fn body(bytes: Bytes, fault: &Fault) -> Body {
    // What was sent has to reach the client before the connection ends.
    const FLUSH: Duration = Duration::from_millis(20);
    let (first, pause, rest) = match (fault.truncate, fault.stall) {
        (Some(count), _) => {
            let first = bytes.slice(..count.min(bytes.len()));
            (
                first,
                FLUSH,
                Err(io::Error::other("the fault says to stop here")),
            )
        }
        (None, Some((count, pause))) => {
            let count = count.min(bytes.len());
            (bytes.slice(..count), pause, Ok(bytes.slice(count..)))
        }
        (None, None) => return whole(bytes),
    };
    let first = stream::iter([Ok(Frame::data(first))]);
    let rest = stream::once(async move {
        tokio::time::sleep(pause).await;
        rest.map(Frame::data)
    });
    StreamBody::new(first.chain(rest)).boxed_unsync()
}
