//! The page of `net-latency report` in a browser: it shows what it should, asks for nothing, and runs nothing.
//!
//! Without a browser these tests are ignored, and say so; where NET_LATENCY_TEST_BROWSER is `required`, as
//! `cargo xtask test` sets it after having installed one, they fail.

use std::collections::HashSet;
use std::env;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use libtest_mimic::{Arguments, Failed, Trial};
use net_latency::inside::Format;
use tempfile::TempDir;

mod logs;

/// Debian's name of chromium without windows, and others of the whole one.
const PROGRAMS: [&str; 4] = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"];
const PACKETS: u64 = 5_000;
const SPAN_NS: u64 = 300_000_000_000;
/// No host has this name; a request for it has to go to the proxy.
const ELSEWHERE: &str = "http://elsewhere.invalid/picture.png";

/// Gets the browser.
type Test = fn(&Path) -> Result<(), Failed>;

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let browser = find_browser();
    let required = env::var_os("NET_LATENCY_TEST_BROWSER").is_some_and(|value| value == "required");
    if browser.is_none() {
        eprintln!("report_page: no browser in PATH (looked for {})", PROGRAMS.join(", "));
        eprintln!("report_page: {}", if required { "its tests fail" } else { "its tests are ignored" });
    }
    let tests: [(&str, Test); 4] = [
        ("the_page_has_its_parts_and_asks_for_nothing", the_page_has_its_parts_and_asks_for_nothing),
        ("what_is_smuggled_in_neither_runs_nor_asks", what_is_smuggled_in_neither_runs_nor_asks),
        ("a_page_without_a_policy_would_have_been_caught", a_page_without_a_policy_would_have_been_caught),
        ("the_page_can_be_seen_by_day_and_by_night", the_page_can_be_seen_by_day_and_by_night),
    ];
    let trials = tests.into_iter().map(|(name, test)| {
        let browser = browser.clone();
        let is_ignored = browser.is_none() && !required;
        Trial::test(name, move || {
            test(&browser.ok_or("there is no browser; cargo xtask setup installs one")?)
        })
        .with_kind("browser")
        .with_ignored_flag(is_ignored)
    });
    libtest_mimic::run(&arguments, trials.collect()).exit_code()
}

fn find_browser() -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let directories: Vec<_> = env::split_paths(&path).collect();
    let places = PROGRAMS.iter().flat_map(|program| directories.iter().map(move |place| place.join(program)));
    places.into_iter().find(|place| place.is_file())
}

/// The page of a log whose processes have names that are markup.
fn page(directory: &TempDir) -> PathBuf {
    let (log, page) = (directory.path().join("log"), directory.path().join("page.html"));
    let mut file = File::create(&log).expect("created");
    logs::write(PACKETS, SPAN_NS, Format::Json, &mut file).expect("written");
    let status = Command::new(env!("CARGO_BIN_EXE_net-latency"))
        .arg("report")
        .args([&log, Path::new("--html"), &page])
        .stdout(Stdio::null())
        .status();
    assert!(status.expect("the tool starts").success());
    page
}

/// What came of looking at a page.
struct Look {
    /// The document as the browser has understood it.
    dom: String,
    /// Messages of the page: errors, refusals, what scripts say.
    console: Vec<String>,
    /// First lines of requests.
    requests: Vec<String>,
}

fn look(browser: &Path, page: &Path) -> Look {
    let profile = TempDir::new().expect("temporary directory");
    let (proxy, requests) = proxy();
    let output = command(browser, page, &profile)
        .args(["--dump-dom", "--enable-logging=stderr"])
        .arg(format!("--proxy-server=http://{proxy}"))
        .output()
        .expect("the browser starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let console = said.lines().filter(|line| line.contains(":CONSOLE")).map(str::to_owned).collect();
    let requests = requests.lock().expect("no holder of the lock panics").clone();
    Look { dom: String::from_utf8(output.stdout).expect("UTF-8"), console, requests }
}

fn command(browser: &Path, page: &Path, profile: &TempDir) -> Command {
    let mut command = Command::new(browser);
    // The sandbox doesn't work for root, which runs tests in containers; the page is our own.
    command.args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]);
    // Requests of the browser on its own account.
    command.args(["--disable-background-networking", "--disable-component-update", "--disable-sync"]);
    command.arg(format!("--user-data-dir={}", profile.path().display()));
    command.arg(format!("file://{}", page.display())).stdin(Stdio::null());
    command
}

/// Takes requests, answers none, and remembers their first lines.
fn proxy() -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port is free");
    let address = listener.local_addr().expect("bound");
    let requests = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&requests);
    thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("accepted");
            let mut line = String::new();
            // A connection that asks for nothing is a request too.
            let _ = BufReader::new(&stream).read_line(&mut line);
            seen.lock().expect("no holder of the lock panics").push(line);
            let _ =
                stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    (address, requests)
}

fn count(text: &str, part: &str) -> usize {
    text.matches(part).count()
}

fn the_page_has_its_parts_and_asks_for_nothing(browser: &Path) -> Result<(), Failed> {
    let directory = TempDir::new()?;
    let Look { dom, console, requests } = look(browser, &page(&directory));
    assert_eq!(console, [""; 0]);
    assert_eq!(requests, [""; 0]);

    assert_eq!(count(&dom, "<h1>"), 1);
    assert_eq!(count(&dom, "<table"), 3);
    assert_eq!(count(&dom, "<caption>"), 3);
    for (class, rows) in [("stages", 4 * 4), ("processes", 6), ("connections", 10 + 1)] {
        let (_, table) = dom.split_once(&format!("<table class=\"{class}\">")).expect(class);
        let (table, _) = table.split_once("</table>").expect("its end");
        assert_eq!(count(table, "<tr"), 1 + rows, "{class}");
        assert_eq!(count(table, "scope=\"row\""), rows, "{class}");
    }
    // Curves and heat map of each direction, a bar for each slow packet, and its three swatches.
    assert_eq!(count(&dom, "<svg viewBox=\"0 0 960 240\" role=\"img\" aria-label="), 4);
    assert_eq!(count(&dom, "<svg class=\"bar\""), 10);
    assert_eq!(count(&dom, "<svg class=\"swatch\""), 30);
    assert_eq!(count(&dom, "<path class=\"curve "), 6);
    assert!(count(&dom, "<path class=\"heat\"") >= 2);
    assert_eq!(count(&dom, "<svg"), 44);

    // Names are text: the browser has made no element of them.
    assert_eq!(count(&dom, "<script"), 0);
    assert_eq!(count(&dom, "<b>"), 0);
    assert!(dom.contains("<code>&lt;script&gt;alert(1</code>"), "the name is shown as it is");
    assert!(
        dom.contains("<code>\"'&amp;&lt;b&gt;\\u{1b}[2J</code>"),
        "control characters are shown by number"
    );
    // Nothing in it leads anywhere.
    for lead in ["http:", "https:", " src=", " href=", "url(", "@import"] {
        assert!(!dom.contains(lead), "{lead}");
    }
    Ok(())
}

/// The page with what an escape that was forgotten would let in.
fn tampered(page: &Path, policy: bool) -> String {
    let text = fs::read_to_string(page).expect("a page");
    let smuggled = format!("<script>console.log('it ran')</script><img src=\"{ELSEWHERE}\"></body>");
    let text = text.replace("</body>", &smuggled);
    if policy { text } else { text.replace("Content-Security-Policy", "nothing") }
}

fn what_is_smuggled_in_neither_runs_nor_asks(browser: &Path) -> Result<(), Failed> {
    let directory = TempDir::new()?;
    let page = page(&directory);
    fs::write(&page, tampered(&page, true))?;
    let Look { dom, console, requests } = look(browser, &page);
    assert!(dom.contains("it ran") && dom.contains(ELSEWHERE));
    assert_eq!(requests, [""; 0]);
    assert!(!console.iter().any(|line| line.contains("\"it ran\"")), "{console:?}");
    assert!(console.iter().any(|line| line.contains("Content Security Policy")), "{console:?}");
    Ok(())
}

fn a_page_without_a_policy_would_have_been_caught(browser: &Path) -> Result<(), Failed> {
    let directory = TempDir::new()?;
    let page = page(&directory);
    fs::write(&page, tampered(&page, false))?;
    let Look { console, requests, .. } = look(browser, &page);
    assert!(requests.iter().any(|line| line.contains(ELSEWHERE)), "{requests:?}");
    assert!(console.iter().any(|line| line.contains("\"it ran\"")), "{console:?}");
    Ok(())
}

fn the_page_can_be_seen_by_day_and_by_night(browser: &Path) -> Result<(), Failed> {
    let directory = TempDir::new()?;
    let page = page(&directory);
    // Backgrounds and the colours of the first stage, as in page.css.
    let modes =
        [("1", [0xff, 0xff, 0xff], [0x0b, 0x6b, 0xcb]), ("0", [0x14, 0x17, 0x1a], [0x58, 0xa6, 0xff])];
    for (mode, background, stage) in modes {
        let profile = TempDir::new()?;
        let picture = directory.path().join("page.png");
        let output = command(browser, &page, &profile)
            .arg("--window-size=1200,4400")
            .arg(format!("--blink-settings=preferredColorScheme={mode}"))
            .arg(format!("--screenshot={}", picture.display()))
            .output()?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let pixels = pixels(&picture);
        let part =
            |colour| pixels.iter().filter(|pixel| **pixel == colour).count() as f64 / pixels.len() as f64;
        assert!((0.4..0.98).contains(&part(background)), "{mode}: {}", part(background));
        assert!(part(stage) > 0.0, "{mode}: no bar");
        let colours: HashSet<_> = pixels.iter().step_by(7).collect();
        assert!(colours.len() > 50, "{mode}: {} colours", colours.len());
    }
    Ok(())
}

fn pixels(picture: &Path) -> Vec<[u8; 3]> {
    let mut reader = png::Decoder::new(BufReader::new(File::open(picture).expect("a picture")))
        .read_info()
        .expect("a PNG");
    let mut bytes = vec![0; reader.output_buffer_size().expect("it fits")];
    let info = reader.next_frame(&mut bytes).expect("a PNG");
    assert_eq!(info.bit_depth, png::BitDepth::Eight);
    let size = info.color_type.samples();
    assert!(size >= 3, "{:?}", info.color_type);
    bytes[..info.buffer_size()].chunks_exact(size).map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect()
}
