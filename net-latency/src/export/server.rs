//! Answers scrapers, on a thread of its own: neither counting nor other scrapers wait for a slow one. Everything about a connection is
//! bounded: how many there are, how long one lasts, what a request may hold.

use std::{
    collections::VecDeque,
    convert::Infallible,
    io::{self, Write as _},
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::Context as _;
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    header::{
        ACCEPT, ACCEPT_ENCODING, ALLOW, CONTENT_ENCODING, CONTENT_TYPE, HOST, HeaderValue, ORIGIN,
        RETRY_AFTER,
    },
    http::uri::Authority,
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::system::uname;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    sync::{Semaphore, mpsc, oneshot},
    task::{AbortHandle, yield_now},
    time::{sleep, timeout},
};

use super::{
    form::Form,
    listener::{Listener, Name, Socket, Stream},
};
use crate::{error::Failure, message::tell};

/// Connections that are answered at a time. A server of metrics has one scraper, or a few.
const CONNECTIONS: usize = 32;
/// Connections beyond these that get an answer saying so at a time. Further ones are closed.
const REFUSALS: usize = 64;
/// How long a request's head may take.
const HEAD_TIME: Duration = Duration::from_secs(5);
/// How long a connection may take, with the answer.
const CONNECTION_TIME: Duration = Duration::from_secs(10);
/// How long one that is refused may take to hear it.
const REFUSAL_TIME: Duration = Duration::from_secs(1);
/// Bytes of a request's head, and of a connection's buffer.
const HEAD_BYTES: usize = 16 << 10;
/// Headers of a request.
const HEADERS: usize = 64;
/// How long to wait where the system has no descriptor left.
const PAUSE: Duration = Duration::from_millis(200);
const TEXT: &str = "text/plain; charset=utf-8";
const STRANGE: &str =
    "this machine is not known by that name; use its address, or add the name with --host-name\n";
const REFUSAL: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nRetry-After: 1\r\n\
    Content-Length: 46\r\nConnection: close\r\n\r\ntoo many connections at a time; try again soon";

/// A request for metrics.
pub(crate) struct Scrape {
    /// In this form.
    pub(crate) form: Form,
    /// Packed by gzip.
    pub(crate) is_packed: bool,
    /// Where they go.
    pub(crate) answer: oneshot::Sender<Bytes>,
}

/// Where the outcome of a requested recording goes.
pub(crate) type Dump = oneshot::Sender<(StatusCode, String)>;

/// What a server requests from its starter.
#[derive(Clone)]
pub(crate) enum Asked {
    /// Metrics.
    Metrics(mpsc::Sender<Scrape>),
    /// Recordings.
    Dumps(mpsc::Sender<Dump>),
}

/// The thread that answers.
pub(crate) struct Server<T> {
    /// Requests.
    pub(crate) asks: mpsc::Receiver<T>,
    is_ready: Arc<AtomicBool>,
    /// The socket's file goes with this.
    _name: Option<Name>,
}

impl<T> Server<T> {
    /// Starts to answer, those who ask for one of the `hosts` if they come by a port: that it is alive, but not ready. The thread that
    /// reads what strangers send first does `prepare`.
    ///
    /// # Errors
    /// If there can't be another thread, or that fails.
    pub(crate) fn start(
        listener: Listener,
        hosts: Vec<String>,
        asked: impl FnOnce(mpsc::Sender<T>) -> Asked,
        prepare: impl FnOnce() -> Result<(), Failure> + Send + 'static,
    ) -> Result<Self, Failure> {
        let (sender, asks) = mpsc::channel(CONNECTIONS);
        let is_ready = Arc::new(AtomicBool::new(false));
        let service = Service {
            asked: asked(sender),
            is_ready: Arc::clone(&is_ready),
            hosts: listener.is_port().then(|| hosts.into()),
            has_asked: Arc::default(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start the runtime")?;
        let (socket, name) = {
            let _guard = runtime.enter();
            listener.into_socket().context("cannot listen")?
        };
        let (prepared, is_prepared) = std::sync::mpsc::channel();
        thread::Builder::new()
            .name("server".to_owned())
            .spawn(move || {
                let result = prepare();
                let can_serve = result.is_ok();
                // The starter waits for this.
                let _ = prepared.send(result);
                if can_serve {
                    runtime.block_on(serve(socket, service));
                }
            })
            .context("cannot start a thread")?;
        is_prepared.recv().context("the thread that answers scrapers has ended")??;
        Ok(Self { asks, is_ready, _name: name })
    }

    /// From now on it is ready, or not any more.
    pub(crate) fn set_ready(&self, is_ready: bool) {
        self.is_ready.store(is_ready, Ordering::Relaxed);
    }
}

#[derive(Clone)]
struct Service {
    asked: Asked,
    is_ready: Arc<AtomicBool>,
    /// By which names of this machine it is asked, as far as they are not addresses; any where only programs of this machine can ask.
    hosts: Option<Arc<[String]>>,
    /// The head of this connection's request has come.
    has_asked: Arc<AtomicBool>,
}

/// The names of this machine by which it may be asked, besides its addresses: its own, and these.
pub(crate) fn hosts(names: &[String]) -> Vec<String> {
    let system = uname();
    let own = system.nodename().to_string_lossy().into_owned();
    names.iter().cloned().chain(["localhost".to_owned(), own]).collect()
}

/// Answers all requests, for ever.
async fn serve(socket: Socket, service: Service) {
    let connections = Arc::new(Semaphore::new(CONNECTIONS));
    let refusals = Arc::new(Semaphore::new(REFUSALS));
    // Those that go on, the oldest first.
    let mut open = VecDeque::new();
    let mut is_told = false;
    loop {
        let stream = match socket.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                // Ignore aborted connections.
                if !is_told && error.kind() != io::ErrorKind::ConnectionAborted {
                    tell(format_args!("cannot accept connections of scrapers: {error}"));
                    is_told = true;
                }
                sleep(PAUSE).await;
                continue;
            }
        };
        is_told = false;
        open.retain(|(task, _): &(AbortHandle, Arc<AtomicBool>)| !task.is_finished());
        if connections.available_permits() == 0
            && let Some(place) = open.iter().position(|(_, has_asked)| !has_asked.load(Ordering::Relaxed))
            && let Some((oldest, _)) = open.remove(place)
        {
            // It has connected, and asks for nothing. Its permit comes back when the task next has its turn.
            oldest.abort();
            yield_now().await;
        }
        if let Ok(permit) = Arc::clone(&connections).try_acquire_owned() {
            let has_asked = Arc::new(AtomicBool::new(false));
            let service = Service { has_asked: Arc::clone(&has_asked), ..service.clone() };
            let task = tokio::spawn(async move {
                // Whatever ends it ends this connection only.
                let _ = timeout(CONNECTION_TIME, answer(stream, service)).await;
                drop(permit);
            });
            open.push_back((task.abort_handle(), has_asked));
        } else if let Ok(permit) = Arc::clone(&refusals).try_acquire_owned() {
            tokio::spawn(async move {
                let _ = timeout(REFUSAL_TIME, refuse(stream)).await;
                drop(permit);
            });
        }
    }
}

/// Answers one request. Connections are not kept alive: each would count towards the limit.
async fn answer(stream: Box<dyn Stream>, service: Service) -> hyper::Result<()> {
    let respond = service_fn(move |request| {
        let service = service.clone();
        async move { Ok::<_, Infallible>(service.respond(&request).await) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD_BYTES)
        .max_headers(HEADERS)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), respond)
        .await
}

/// Says that there are too many, and waits until that was read: what is unread when a socket closes takes the answer with it.
async fn refuse(mut stream: Box<dyn Stream>) -> io::Result<()> {
    stream.write_all(REFUSAL).await?;
    stream.shutdown().await?;
    let mut unread = [0; 1024];
    while stream.read(&mut unread).await? > 0 {}
    Ok(())
}

impl Service {
    async fn respond(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        self.has_asked.store(true, Ordering::Relaxed);
        if !self.is_known(request) {
            return text(StatusCode::MISDIRECTED_REQUEST, STRANGE);
        }
        let scrapes = match &self.asked {
            Asked::Metrics(scrapes) => scrapes,
            Asked::Dumps(dumps) => return self.respond_to_dumps(request, dumps).await,
        };
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only GET and HEAD\n");
            response.headers_mut().insert(ALLOW, "GET, HEAD".parse().expect("a header"));
            return response;
        }
        match request.uri().path() {
            "/metrics" => self.metrics(request, scrapes).await,
            "/healthz" => text(StatusCode::OK, "ok\n"),
            "/readyz" if self.is_ready.load(Ordering::Relaxed) => text(StatusCode::OK, "tracing\n"),
            "/readyz" => text(StatusCode::SERVICE_UNAVAILABLE, "not tracing\n"),
            "/" => text(StatusCode::OK, "net-latency export: /metrics /healthz /readyz\n"),
            _ => text(StatusCode::NOT_FOUND, "not found; try /metrics, /healthz or /readyz\n"),
        }
    }

    async fn respond_to_dumps(
        &self,
        request: &Request<Incoming>,
        dumps: &mpsc::Sender<Dump>,
    ) -> Response<Full<Bytes>> {
        let is_ready = self.is_ready.load(Ordering::Relaxed);
        match (request.method(), request.uri().path()) {
            // Browsers say so when a page makes them send a request, which no page may.
            (_, "/dump") if request.headers().contains_key(ORIGIN) => {
                text(StatusCode::FORBIDDEN, "web pages may not request this\n")
            }
            (&Method::POST, "/dump") if is_ready => {
                let (answer, written) = oneshot::channel();
                let is_asked = dumps.send(answer).await.is_ok();
                match if is_asked { written.await.ok() } else { None } {
                    Some((status, words)) => text(status, words + "\n"),
                    None => text(StatusCode::SERVICE_UNAVAILABLE, "not recording\n"),
                }
            }
            (&Method::POST, "/dump") => text(StatusCode::SERVICE_UNAVAILABLE, "not recording\n"),
            (_, "/dump") => {
                let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "only POST\n");
                response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
                response
            }
            (&Method::GET | &Method::HEAD, "/healthz") => text(StatusCode::OK, "ok\n"),
            (&Method::GET | &Method::HEAD, "/readyz") if is_ready => text(StatusCode::OK, "recording\n"),
            (&Method::GET | &Method::HEAD, "/readyz") => {
                text(StatusCode::SERVICE_UNAVAILABLE, "not recording\n")
            }
            _ => text(StatusCode::NOT_FOUND, "not found; try POST /dump, GET /healthz or GET /readyz\n"),
        }
    }

    /// Whether the request is for this machine: a page of a browser here may ask by a name of its own that leads here. Addresses are
    /// what they are; a name has to be one of ours.
    fn is_known(&self, request: &Request<Incoming>) -> bool {
        let Some(hosts) = &self.hosts else { return true };
        let Some(host) = request.headers().get(HOST) else { return true };
        let Some(host) = host.to_str().ok().and_then(|host| host.parse::<Authority>().ok()) else {
            return false;
        };
        let name = host.host();
        let is_address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>().is_ok();
        is_address || hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
    }

    async fn metrics(
        &self,
        request: &Request<Incoming>,
        scrapes: &mpsc::Sender<Scrape>,
    ) -> Response<Full<Bytes>> {
        let accept: Vec<_> =
            request.headers().get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
        let form = Form::accepted(&accept.join(","));
        let is_packed = takes_gzip(request);
        let (answer, metrics) = oneshot::channel();
        let is_asked = self.is_ready.load(Ordering::Relaxed)
            && scrapes.send(Scrape { form, is_packed, answer }).await.is_ok();
        let metrics = if is_asked { metrics.await.ok() } else { None };
        match metrics {
            Some(metrics) => {
                let mut response = Response::new(Full::new(metrics));
                let headers = response.headers_mut();
                headers.insert(CONTENT_TYPE, form.content_type().parse().expect("a header"));
                if is_packed {
                    headers.insert(CONTENT_ENCODING, "gzip".parse().expect("a header"));
                }
                response
            }
            None => {
                let mut response = text(StatusCode::SERVICE_UNAVAILABLE, "not tracing\n");
                response.headers_mut().insert(RETRY_AFTER, "1".parse().expect("a header"));
                response
            }
        }
    }
}

/// Whether it says so; what it may mean by anything else is not worth a guess.
fn takes_gzip(request: &Request<Incoming>) -> bool {
    let values = request.headers().get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let is_gzip = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let is_refused = |part: &str| part.strip_prefix("q=").and_then(|q| q.parse().ok()) == Some(0.0);
        is_gzip && !parts.any(is_refused)
    })
}

/// The bytes, packed.
pub(crate) fn gzipped(bytes: &[u8]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("a vector takes everything").into()
}

fn text(status: StatusCode, words: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(words.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, TEXT.parse().expect("a header"));
    response
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read as _,
        net::{Ipv4Addr, SocketAddr, TcpStream},
        os::unix::net::UnixStream,
        thread::JoinHandle,
        time::Instant,
    };

    use super::*;
    use crate::request::Listen;

    const BODY: &str = "net_latency 1\n";

    fn hosts() -> Vec<String> {
        super::hosts(&["node-7.example".to_owned()])
    }

    /// A free port of this machine.
    fn listen() -> (Listener, SocketAddr) {
        let listener = Listener::open(&Listen::Port((Ipv4Addr::LOCALHOST, 0).into())).expect("a free port");
        let Listen::Port(address) = listener.address() else { panic!("a port") };
        (listener, address)
    }

    /// A server on a port of its own, with metrics for all requests.
    fn start() -> SocketAddr {
        let (listener, address) = listen();
        start_on(listener);
        address
    }

    fn start_on(listener: Listener) -> JoinHandle<()> {
        let server = Server::start(listener, hosts(), Asked::Metrics, || Ok(())).expect("a thread");
        server.set_ready(true);
        thread::spawn(move || {
            // All of it, the socket's file too.
            let mut server = server;
            while let Some(scrape) = server.asks.blocking_recv() {
                let body = Bytes::from_static(BODY.as_bytes());
                let _ = scrape.answer.send(if scrape.is_packed { gzipped(&body) } else { body });
            }
        })
    }

    fn connect(address: SocketAddr) -> TcpStream {
        let stream = TcpStream::connect(address).expect("it listens");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
        stream
    }

    fn read(mut stream: TcpStream) -> String {
        let mut answer = Vec::new();
        // A reset at the end is as good as an end.
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8(answer).expect("text")
    }

    fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = connect(address);
        // One that is refused early may not be read to its end.
        let _ = stream.write_all(request);
        read(stream)
    }

    fn get(address: SocketAddr, path: &str) -> String {
        ask(address, format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes())
    }

    fn status(answer: &str) -> &str {
        answer.split(' ').nth(1).unwrap_or_default()
    }

    #[test]
    fn each_path_has_its_answer() {
        let address = start();
        let metrics = get(address, "/metrics?x=1");
        assert!(metrics.ends_with(BODY) && metrics.contains(Form::Text.content_type()), "{metrics}");
        let open = ask(
            address,
            b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: application/openmetrics-text; version=1.0.0\r\n\r\n",
        );
        assert!(open.contains(Form::OpenMetrics.content_type()), "{open}");
        let codes =
            ["/healthz", "/readyz", "/", "/etc/passwd"].map(|path| status(&get(address, path)).to_owned());
        assert_eq!(codes, ["200", "200", "200", "404"]);
        let head = ask(address, b"HEAD /metrics HTTP/1.1\r\nHost: LocalHost:1\r\n\r\n");
        assert!(status(&head) == "200" && head.ends_with("\r\n\r\n"), "{head}");
        assert_eq!(status(&ask(address, b"DELETE /metrics HTTP/1.1\r\nHost: [::1]:9823\r\n\r\n")), "405");
    }

    #[test]
    fn who_takes_gzip_gets_it() {
        let address = start();
        let ask = |coding: &str| {
            let mut stream = connect(address);
            let request =
                format!("GET /metrics HTTP/1.1\r\nHost: 10.1.2.3\r\nAccept-Encoding: {coding}\r\n\r\n");
            stream.write_all(request.as_bytes()).expect("it listens");
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).expect("an answer");
            let end = answer.windows(4).position(|four| four == b"\r\n\r\n").expect("headers") + 4;
            let body = answer.split_off(end);
            (String::from_utf8(answer).expect("text").contains("content-encoding: gzip"), body)
        };
        let (is_gzip, body) = ask("deflate, gzip;q=0.5");
        let mut text = String::new();
        flate2::read::GzDecoder::new(&body[..]).read_to_string(&mut text).expect("gzip");
        assert!(is_gzip && text == BODY, "{text}");
        for other in ["identity", "gzip;q=0", "br"] {
            assert_eq!(ask(other), (false, BODY.as_bytes().to_vec()), "{other}");
        }
    }

    #[test]
    fn recordings_are_asked_for_by_programs_only() {
        let (listener, address) = listen();
        let server = Server::start(listener, hosts(), Asked::Dumps, || Ok(())).expect("a thread");
        let post = |headers: &str| {
            ask(address, format!("POST /dump HTTP/1.1\r\nHost: {address}\r\n{headers}\r\n").as_bytes())
        };
        assert_eq!(status(&post("")), "503", "not ready yet");
        server.set_ready(true);
        thread::spawn(move || {
            let mut server = server;
            while let Some(answer) = server.asks.blocking_recv() {
                let _ = answer.send((StatusCode::OK, "written".to_owned()));
            }
        });
        let written = post("");
        assert!(status(&written) == "200" && written.ends_with("\r\n\r\nwritten\n"), "{written}");
        assert_eq!(status(&post("Origin: http://evil.example\r\n")), "403");
        assert_eq!(status(&post("Origin: null\r\n")), "403");
        assert_eq!(status(&ask(address, b"POST /dump HTTP/1.1\r\nHost: evil.example\r\n\r\n")), "421");
        let codes =
            ["/dump", "/healthz", "/readyz", "/metrics"].map(|path| status(&get(address, path)).to_owned());
        assert_eq!(codes, ["405", "200", "200", "404"]);
    }

    #[test]
    fn only_names_of_this_machine_are_answered() {
        let address = start();
        let code = |host: &str| {
            let answer = ask(address, format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes());
            assert_eq!(answer.contains(BODY), status(&answer) == "200", "{answer}");
            status(&answer).to_owned()
        };
        for host in ["localhost", "NODE-7.example:9823", "127.0.0.1:1", "[::1]", "192.0.2.9"] {
            assert_eq!(code(host), "200", "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:9823", "node-7", "x@localhost.evil.example"] {
            assert_eq!(code(host), "421", "{host}");
        }
        // Browsers always name one.
        assert_eq!(status(&ask(address, b"GET /healthz HTTP/1.0\r\n\r\n")), "200");
    }

    #[test]
    fn who_is_not_ready_says_so() {
        let (listener, address) = listen();
        let server = Server::start(listener, hosts(), Asked::Metrics, || Ok(())).expect("a thread");
        let codes = ["/healthz", "/readyz", "/metrics"].map(|path| status(&get(address, path)).to_owned());
        assert_eq!(codes, ["200", "503", "503"]);
        // The run is over, and the thread has not noticed.
        server.set_ready(true);
        drop(server);
        assert_eq!(status(&get(address, "/metrics")), "503");
    }

    #[test]
    fn what_is_no_request_or_too_large_is_refused() {
        let address = start();
        assert_eq!(status(&ask(address, b"\x16\x03\x01\x02\x00garbage\r\n\r\n")), "400");
        let many = format!("GET /metrics HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(HEADERS + 1));
        assert_eq!(status(&ask(address, many.as_bytes())), "431");
        let huge = format!("GET /metrics HTTP/1.1\r\nA: {}\r\n\r\n", "b".repeat(1 << 20));
        let answer = ask(address, huge.as_bytes());
        assert!(!answer.contains(BODY), "{answer}");
        assert!(get(address, "/metrics").ends_with(BODY));
    }

    #[test]
    fn too_many_connections_are_told_so_and_the_rest_goes_on() {
        let (listener, address) = listen();
        let mut server = Server::start(listener, hosts(), Asked::Metrics, || Ok(())).expect("a thread");
        server.set_ready(true);
        let mut waiting: Vec<_> = (0..CONNECTIONS).map(|_| connect(address)).collect();
        for stream in &mut waiting {
            stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("it listens");
        }
        // All have asked.
        let asked: Vec<_> = waiting.iter().map(|_| server.asks.blocking_recv().expect("a scrape")).collect();
        let refused = get(address, "/metrics");
        assert!(status(&refused) == "503" && refused.contains("too many connections"), "{refused}");
        let body = refused.split("\r\n\r\n").nth(1).expect("a body");
        assert!(refused.contains(&format!("Content-Length: {}\r\n", body.len())), "{refused}");
        // Many at once: each has an answer or an end.
        let crowd: Vec<_> = (0..300).map(|_| connect(address)).collect();
        drop(crowd);
        asked.into_iter().for_each(|scrape| drop(scrape.answer.send(Bytes::from_static(BODY.as_bytes()))));
        assert!(waiting.into_iter().all(|stream| read(stream).ends_with(BODY)));
        let begun = Instant::now();
        while status(&get(address, "/healthz")) != "200" {
            assert!(begun.elapsed() < Duration::from_secs(20), "no request is answered any more");
            thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn those_who_ask_for_nothing_keep_nobody_out() {
        let address = start();
        let mut silent: Vec<_> = (0..CONNECTIONS + 8).map(|_| connect(address)).collect();
        for stream in silent.iter_mut().take(CONNECTIONS) {
            // Those that have gone already don't take it.
            let _ = stream.write_all(b"GET /metrics HTT");
        }
        for _ in 0..20 {
            assert!(get(address, "/metrics").ends_with(BODY));
        }
        drop(silent);
    }

    #[test]
    fn half_a_request_ends_in_time() {
        let address = start();
        let begun = Instant::now();
        let answer = ask(address, b"GET /metrics HTT");
        assert!(!answer.contains(BODY), "{answer}");
        assert!(begun.elapsed() < CONNECTION_TIME + Duration::from_secs(10), "{:?}", begun.elapsed());
    }

    #[test]
    fn programs_of_this_machine_ask_by_a_unix_socket_and_any_name() {
        let directory = tempfile::tempdir().expect("temporary directory");
        let path = directory.path().join("metrics.sock");
        let listener = Listener::open(&Listen::Unix(path.clone())).expect("made");
        let server = start_on(listener);
        let mut stream = UnixStream::connect(&path).expect("it listens");
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: metrics.example\r\n\r\n").expect("it listens");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(status(&answer) == "200" && answer.ends_with(BODY), "{answer}");
        drop(server);
    }
}
