//! Readers are tried with damaged input: pieces of what they read are changed, doubled, cut and put together anew. Each
//! reader's test stands beside it and is called `fuzz_…`.
//!
//! An ordinary run makes some hundreds of tries from the recorded seed. With `NET_LATENCY_FUZZ_SECONDS` each test goes on
//! for so long; `cargo xtask test --all` does that with a new seed. `cargo xtask fuzz` has libFuzzer make the inputs, which
//! keeps what reaches new code.

use std::{
    cell::Cell,
    env, fmt,
    ops::Range,
    process,
    sync::{
        Arc, Mutex,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant, UNIX_EPOCH},
};

use proptest::{
    collection::vec,
    prelude::*,
    sample::select,
    test_runner::{Config, RngSeed, TestCaseError, TestRunner},
};

const SECONDS: &str = "NET_LATENCY_FUZZ_SECONDS";
/// A single try that takes longer hangs, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of an input. What readers do with more, tests of their bounds show.
const MOST: usize = 16 << 10;
/// Bytes that often matter: ends, separators, signs, bounds of numbers.
const BYTES: &[u8] = b"\0\n\r\t \"',.:;-+/\\%=[]{}()*?!|0179aAzZ\x1b\x7f\x80\xbf\xc3\xe4\xfe\xff";
/// Numbers at whose bounds readers go wrong.
const NUMBERS: [u64; 12] = [
    0,
    1,
    0x7f,
    0x80,
    0xffff,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_fff0,
    0xffff_ffff,
    1 << 62,
    i64::MAX as u64,
    u64::MAX,
];

/// A change of an input. Places are taken modulo its length.
#[derive(Clone, Debug)]
enum Change {
    Flip(usize, u8),
    Set(usize, u8),
    Insert(usize, Vec<u8>),
    Remove(usize, usize),
    /// A part of it, again and elsewhere, some times.
    Copy(usize, usize, usize, usize),
    /// The lowest bytes of a number.
    Number(usize, u64, usize),
    /// A part of another input.
    Splice(usize, usize, usize, usize),
    Cut(usize),
}

fn place(at: usize, len: usize) -> usize {
    at % (len + 1)
}

fn range(at: usize, count: usize, len: usize) -> Range<usize> {
    let start = place(at, len);
    start..(start + count).min(len)
}

impl Change {
    fn apply(&self, seeds: &[Vec<u8>], bytes: &mut Vec<u8>) {
        let len = bytes.len();
        match self {
            Self::Flip(at, bit) if len > 0 => bytes[at % len] ^= 1 << (bit % 8),
            Self::Set(at, byte) if len > 0 => bytes[at % len] = *byte,
            Self::Flip(..) | Self::Set(..) => {}
            Self::Insert(at, what) => insert(bytes, *at, what),
            Self::Remove(at, count) => drop(bytes.drain(range(*at, *count, len))),
            Self::Copy(at, count, to, times) => {
                let part = bytes[range(*at, *count, len)].repeat(*times);
                insert(bytes, *to, &part);
            }
            Self::Number(at, number, width) => {
                let range = range(*at, *width, len);
                let number = number.to_le_bytes();
                let count = range.len();
                bytes[range].copy_from_slice(&number[..count]);
            }
            Self::Splice(seed, at, count, to) => {
                let other = &seeds[seed % seeds.len()];
                insert(bytes, *to, &other[range(*at, *count, other.len())]);
            }
            Self::Cut(at) => bytes.truncate(place(*at, len)),
        }
        bytes.truncate(MOST);
    }
}

fn insert(bytes: &mut Vec<u8>, at: usize, what: &[u8]) {
    let at = place(at, bytes.len());
    bytes.splice(at..at, what.iter().copied());
}

/// What a reader gets; shown as a byte string's literal, for a unit test.
#[derive(Clone, PartialEq, Eq)]
struct Input(Vec<u8>);

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.0.escape_ascii())
    }
}

fn inputs(seeds: Vec<Vec<u8>>, words: &'static [&'static str]) -> impl Strategy<Value = Input> {
    let at = || prop_oneof![2 => any::<u16>().prop_map(usize::from), 1 => 0..64usize];
    let count = || prop_oneof![4 => 1..9usize, 2 => 1..64usize, 1 => any::<u16>().prop_map(usize::from)];
    let byte = || prop_oneof![any::<u8>(), select(BYTES)];
    let word = if words.is_empty() { vec![Vec::new()] } else { words.iter().map(|w| (*w).into()).collect() };
    let change = prop_oneof![
        1 => (at(), any::<u8>()).prop_map(|(at, bit)| Change::Flip(at, bit)),
        2 => (at(), byte()).prop_map(|(at, byte)| Change::Set(at, byte)),
        1 => (at(), vec(byte(), 1..5)).prop_map(|(at, what)| Change::Insert(at, what)),
        2 => (at(), select(word)).prop_map(|(at, what)| Change::Insert(at, what)),
        1 => (at(), count()).prop_map(|(at, count)| Change::Remove(at, count)),
        1 => (at(), count(), at(), prop_oneof![9 => Just(1), 1 => 1..200usize])
            .prop_map(|(at, count, to, times)| Change::Copy(at, count, to, times)),
        1 => (at(), prop_oneof![select(&NUMBERS[..]), any::<u64>()], select(&[1, 2, 4, 8][..]))
            .prop_map(|(at, number, width)| Change::Number(at, number, width)),
        1 => (any::<usize>(), at(), count(), at())
            .prop_map(|(seed, at, count, to)| Change::Splice(seed, at, count, to)),
        1 => at().prop_map(Change::Cut),
    ];
    (0..seeds.len(), vec(change, 0..8)).prop_map(move |(seed, changes)| {
        let mut bytes = seeds[seed].clone();
        changes.iter().for_each(|change| change.apply(&seeds, &mut bytes));
        Input(bytes)
    })
}

/// Gives `reader` changed `seeds`, with `words` in them that it knows; `tries` of them in an ordinary run. A panic of the
/// reader fails the test with the shortest input that still brings it about; one that hangs ends the process with its input.
pub(crate) fn run(
    name: &str,
    tries: u32,
    seeds: impl IntoIterator<Item = Vec<u8>>,
    words: &'static [&'static str],
    reader: impl Fn(&[u8]),
) {
    let seeds: Vec<_> = seeds.into_iter().collect();
    #[cfg(fuzzing)]
    engine::run(name, &seeds, words, &reader);
    let seconds = env::var(SECONDS).ok().map(|text| text.parse().expect("a number of seconds"));
    go_on_for(seconds.map(Duration::from_secs), name, tries, seeds, words, reader);
}

/// Runs for a time; without one, for as many `tries`.
fn go_on_for(
    time: Option<Duration>,
    name: &str,
    tries: u32,
    seeds: Vec<Vec<u8>>,
    words: &'static [&'static str],
    reader: impl Fn(&[u8]),
) {
    // As they are, they must be read.
    seeds.iter().for_each(|seed| reader(seed));
    let strategy = inputs(seeds, words);
    let mut config = Config { cases: tries, failure_persistence: None, ..Config::default() };
    let mut seed = match config.rng_seed {
        RngSeed::Fixed(seed) => seed,
        RngSeed::Random => UNIX_EPOCH.elapsed().map_or(0, |now| now.as_secs()),
    };
    let executions = Cell::new(0_u64);
    let began = Instant::now();
    let latest = Arc::new(Mutex::new((0, Input(Vec::new()))));
    let _watched = watch(name.to_owned(), Arc::clone(&latest));
    loop {
        config.rng_seed = RngSeed::Fixed(seed);
        let outcome = TestRunner::new(config.clone()).run(&strategy, |input| {
            executions.set(executions.get() + 1);
            if let Ok(mut latest) = latest.lock() {
                *latest = (executions.get(), input.clone());
            }
            reader(&input.0);
            Ok::<(), TestCaseError>(())
        });
        if let Err(error) = outcome {
            panic!("{name}: with PROPTEST_RNG_SEED={seed}: {error}");
        }
        if time.is_none_or(|time| began.elapsed() >= time) {
            break;
        }
        seed = seed.wrapping_add(1);
    }
    println!("fuzz {name}: {} tries in {:.1} s", executions.get(), began.elapsed().as_secs_f64());
}

/// Ends the process if a try takes too long. Ends itself when what it returns is dropped.
fn watch(name: String, latest: Arc<Mutex<(u64, Input)>>) -> mpsc::Sender<()> {
    let (watched, is_over) = mpsc::channel();
    thread::spawn(move || {
        let mut before = u64::MAX;
        while is_over.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            let Ok(latest) = latest.lock() else { return };
            if latest.0 == before {
                eprintln!("{name}: this takes more than {PATIENCE:?}: {:?}", latest.1);
                process::abort();
            }
            before = latest.0;
        }
    });
    watched
}

/// libFuzzer, which `cargo xtask fuzz` links.
#[cfg(fuzzing)]
mod engine {
    use std::{
        cell::Cell,
        env,
        ffi::{CString, c_char, c_int},
        fs,
        path::PathBuf,
        ptr, slice,
    };

    use super::MOST;

    /// Where what it keeps is, a directory for each reader.
    const CORPUS: &str = "NET_LATENCY_FUZZ_CORPUS";
    /// What else it is told, separated by spaces.
    const OPTIONS: &str = "NET_LATENCY_FUZZ_OPTIONS";

    unsafe extern "C" {
        /// compiler-rt's `FuzzerDriver.cpp`: never returns where it makes inputs.
        fn LLVMFuzzerRunDriver(
            argc: *mut c_int,
            argv: *mut *mut *mut c_char,
            read: extern "C" fn(*const u8, usize) -> c_int,
        ) -> c_int;
    }

    thread_local! {
        static READER: Cell<Option<*const dyn Fn(&[u8])>> = const { Cell::new(None) };
    }

    extern "C" fn read(bytes: *const u8, len: usize) -> c_int {
        let reader = READER.get().expect("it is set before inputs are made");
        // SAFETY: libFuzzer gives `len` bytes that stay as they are during the call, and calls on the thread that has set the
        // reader, whose frame goes on until the driver ends. The pointer is null where there are none.
        let (reader, bytes) =
            unsafe { (&*reader, if len == 0 { &[] } else { slice::from_raw_parts(bytes, len) }) };
        reader(bytes);
        0
    }

    /// Ends with the process: libFuzzer does that when its time is up, or when the reader panics.
    pub(super) fn run(name: &str, seeds: &[Vec<u8>], words: &[&str], reader: &dyn Fn(&[u8])) {
        let Ok(corpus) = env::var(CORPUS) else { return };
        let directory = PathBuf::from(corpus).join(name.replace(' ', "-"));
        let inputs = directory.join("inputs");
        fs::create_dir_all(&inputs).expect("a directory for inputs");
        for (number, seed) in seeds.iter().enumerate() {
            fs::write(inputs.join(format!("seed-{number}")), seed).expect("a seed is written");
        }
        let escaped = |word: &&str| word.bytes().map(|byte| format!("\\x{byte:02x}")).collect::<String>();
        let entries: String = words.iter().map(|word| format!("\"{}\"\n", escaped(word))).collect();
        let dictionary = directory.join("words");
        fs::write(&dictionary, entries).expect("words are written");
        let mut arguments = vec![
            name.to_owned(),
            format!("-max_len={MOST}"),
            format!("-artifact_prefix={}/", directory.display()),
            "-print_final_stats=1".to_owned(),
        ];
        // It refuses an empty one.
        if !words.is_empty() {
            arguments.push(format!("-dict={}", dictionary.display()));
        }
        arguments.extend(env::var(OPTIONS).unwrap_or_default().split_whitespace().map(str::to_owned));
        arguments.push(inputs.display().to_string());
        let arguments: Vec<_> =
            arguments.into_iter().map(|argument| CString::new(argument).expect("no NUL")).collect();
        let mut pointers: Vec<_> = arguments.iter().map(|argument| argument.as_ptr().cast_mut()).collect();
        pointers.push(ptr::null_mut());
        let (mut count, mut start) = (arguments.len() as c_int, pointers.as_mut_ptr());
        // SAFETY: it only forgets how long the reader lives, and that is longer than the driver runs.
        let reader: &'static dyn Fn(&[u8]) = unsafe { std::mem::transmute(reader) };
        READER.set(Some(ptr::from_ref(reader)));
        // SAFETY: the arguments are strings of C that end with a null pointer, and live until it returns; `read` is as it wants it.
        let code = unsafe { LLVMFuzzerRunDriver(&raw mut count, &raw mut start, read) };
        panic!("libFuzzer has ended with {code}, and makes no inputs");
    }
}

#[test]
fn a_panic_of_a_reader_is_found_and_its_input_shown() {
    let reader = |bytes: &[u8]| assert!(!bytes.windows(2).any(|pair| pair == b"\xff]"), "there it is");
    let outcome = std::panic::catch_unwind(|| {
        go_on_for(None, "test", 20_000, vec![b"[1, 2]".to_vec()], &[], reader);
    });
    let text = outcome.expect_err("it panics");
    let text = text.downcast_ref::<String>().expect("a sentence");
    assert!(text.contains("\\xff]"), "{text}");
}
