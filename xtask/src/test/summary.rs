//! Adds up what many test programs report.

use std::fmt;

/// Lines of a failed test's report that are repeated at the end; the whole is in the output before.
const MESSAGE_LINES: usize = 12;
/// Characters of the first line of such a report, where it is all that is told.
const MOST_OF_A_LINE: usize = 600;
/// What a guest's test program puts before a test's name and the reason why it plays again.
const SECOND_TRY: &str = "second try: ";
/// What it puts there where the test has nothing to look at on that kernel.
const SKIPPED: &str = "skipped: ";

/// What has passed and failed so far.
#[derive(Debug, Default)]
pub(crate) struct Summary {
    passed: u64,
    failed: u64,
    /// What failed, and why.
    failures: Vec<(String, String)>,
    /// Tests that were skipped or played again, where and why, whatever came of it.
    told: Vec<String>,
    /// What else is to be told at the end.
    remarks: Vec<String>,
}

impl Summary {
    /// Counts a failed step.
    pub(crate) fn fail(&mut self, what: &str, why: &str) {
        self.failed += 1;
        self.failures.push((what.to_owned(), why.to_owned()));
    }

    /// Counts a step that is a test by itself.
    pub(crate) fn pass(&mut self) {
        self.passed += 1;
    }

    /// Adds what ran beside.
    pub(crate) fn add(&mut self, beside: Self) {
        let Self { passed, failed, failures, told, remarks } = beside;
        self.passed += passed;
        self.failed += failed;
        self.failures.extend(failures);
        self.told.extend(told);
        self.remarks.extend(remarks);
    }

    /// Failures so far.
    pub(crate) fn failed(&self) -> u64 {
        self.failed
    }

    /// Has something told at the end.
    pub(crate) fn remark(&mut self, text: &str) {
        self.remarks.push(text.to_owned());
    }

    /// Counts the tests of a finished run. One that failed otherwise than by its tests is a failure by itself,
    /// and so is one that reports no result.
    pub(crate) fn add_run(&mut self, what: &str, output: &str, status: i32) {
        let counts = Counts::of(output);
        self.passed += counts.passed;
        let failed = failed_tests(output);
        if counts.programs == 0 {
            self.fail(what, &format!("no test result; exit status {status}"));
        } else if status != 0 && counts.failed == 0 {
            self.fail(what, "failed, though no test did: a program didn't build or died");
        } else if status == 0 && counts.failed > 0 {
            self.fail(what, "reports success in spite of failed tests");
        }
        if failed.len() as u64 != counts.failed {
            self.fail(what, &format!("{} tests failed, but it names {}", counts.failed, failed.len()));
        }
        for test in failed {
            self.fail(&format!("{what}: {}", test.name), &test.message);
        }
        for word in [SKIPPED, SECOND_TRY] {
            self.told.extend(told(word, output).map(|line| format!("{word}{what}: {line}")));
        }
    }

    /// Prints skipped and repeated tests, why steps failed, and at last each one's name with the first line of why: reports are long, and
    /// the end of a log is what people see first.
    pub(crate) fn explain(&self) {
        for line in self.closing() {
            eprintln!("xtask: {line}");
        }
    }

    fn closing(&self) -> impl Iterator<Item = String> {
        let reasons = self.failures.iter().map(|(what, why)| format!("failed: {what}: {why}"));
        let brief = self.failures.iter().map(|(what, why)| {
            let first = why.lines().next().unwrap_or_default();
            format!("failed: {what}: {}", first.chars().take(MOST_OF_A_LINE).collect::<String>())
        });
        self.told.iter().cloned().chain(reasons).chain(self.remarks.iter().cloned()).chain(brief)
    }

    /// Whether nothing failed.
    pub(crate) fn is_good(&self) -> bool {
        self.failed == 0
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

/// The sums of the result lines in some output.
#[derive(Debug, Default, PartialEq)]
struct Counts {
    programs: u64,
    passed: u64,
    failed: u64,
}

impl Counts {
    fn of(output: &str) -> Self {
        let mut counts = Self::default();
        for line in output.lines() {
            let Some(result) = line.trim().strip_prefix("test result: ") else { continue };
            counts.programs += 1;
            counts.passed += count(result, " passed");
            counts.failed += count(result, " failed");
        }
        counts
    }
}

/// The number before a word, as in `ok. 12 passed; 0 failed`.
fn count(result: &str, word: &str) -> u64 {
    let number = |part: &str| part.strip_suffix(word)?.rsplit(' ').next()?.parse().ok();
    result.split(';').find_map(number).unwrap_or(0)
}

/// A test that failed, by its program's own report.
#[derive(Debug, PartialEq)]
struct FailedTest {
    name: String,
    message: String,
}

/// The tests that programs report as failed: each has a part of its own, headed `---- NAME ----` or, by cargo's own programs,
/// `---- NAME stdout ----`, behind all tests.
fn failed_tests(output: &str) -> Vec<FailedTest> {
    let heading = |line: &str| {
        let name = line.strip_prefix("---- ")?.strip_suffix(" ----")?;
        Some(name.strip_suffix(" stdout").unwrap_or(name).to_owned())
    };
    let mut tests: Vec<FailedTest> = Vec::new();
    let mut lines = 0;
    for line in output.lines().map(str::trim_end) {
        if let Some(name) = heading(line) {
            tests.push(FailedTest { name, message: String::new() });
            lines = 0;
        } else if line == "failures:" || line.starts_with("test result: ") {
            lines = usize::MAX;
        } else if let Some(test) = tests.last_mut()
            && lines < MESSAGE_LINES
        {
            test.message += if lines == 0 { "" } else { "\n" };
            test.message += line;
            lines += 1;
            if lines == MESSAGE_LINES {
                test.message += "\n(the whole is in the output above)";
            }
        }
    }
    tests
}

/// What a test program has told by that word: `NAME: REASON`. The line may stand behind the test's name, which is printed when it begins.
fn told<'a>(word: &'static str, output: &'a str) -> impl Iterator<Item = &'a str> {
    output.lines().filter_map(move |line| {
        let (before, told) = line.split_once(word)?;
        let is_its_own = before.is_empty() || before.starts_with("test ") && before.ends_with("... ");
        is_its_own.then(|| told.trim_end())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "running 2 tests\n..\n\
        test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.01s\n\
        test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\r\n";
    const BAD: &str = "test a ... FAILED\n\nfailures:\n\n---- a ----\n3 lines, not 4\n{\"ts\":1}\n\n---- b::c ----\n\
        no line\n\n\nfailures:\n    a\n    b::c\n\n\
        test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out\n";

    fn summed(output: &str, status: i32) -> String {
        let mut summary = Summary::default();
        summary.add_run("run", output, status);
        summary.to_string()
    }

    #[test]
    fn result_lines_add_up() {
        assert_eq!(Counts::of(&format!("{GOOD}{BAD}")), Counts { programs: 3, passed: 17, failed: 2 });
        assert_eq!(summed(GOOD, 0), "13 passed, 0 failed");
        assert_eq!(summed(BAD, 101), "4 passed, 2 failed");
    }

    #[test]
    fn a_run_that_fails_without_a_failed_test_counts() {
        assert_eq!(summed(GOOD, 101), "13 passed, 1 failed");
    }

    #[test]
    fn a_run_without_a_result_is_a_failure() {
        assert_eq!(summed("", 0), "0 passed, 1 failed");
    }

    #[test]
    fn a_lie_is_a_failure() {
        assert_eq!(summed(BAD, 0), "4 passed, 3 failed");
    }

    #[test]
    fn failed_tests_are_known_by_name() {
        let mut summary = Summary::default();
        summary.add_run("guest", BAD, 101);
        let closing: Vec<_> = summary.closing().collect();
        assert_eq!(
            closing,
            [
                "failed: guest: a: 3 lines, not 4\n{\"ts\":1}\n",
                "failed: guest: b::c: no line\n\n",
                "failed: guest: a: 3 lines, not 4",
                "failed: guest: b::c: no line",
            ]
        );
        assert_eq!(summary.to_string(), "4 passed, 2 failed");
    }

    #[test]
    fn cargos_own_programs_name_failed_tests_too() {
        let tests = failed_tests(&BAD.replace("a ----\n", "a stdout ----\n"));
        assert_eq!(tests[0].name, "a");
    }

    #[test]
    fn a_long_message_says_where_the_rest_is() {
        let output =
            format!("---- a ----\n{}test result: FAILED. 0 passed; 1 failed\n", "line\n".repeat(100));
        let message = &failed_tests(&output)[0].message;
        assert_eq!(message.lines().count(), MESSAGE_LINES + 1);
        assert!(message.ends_with("(the whole is in the output above)"), "{message}");
    }

    #[test]
    fn a_failed_test_without_a_name_still_counts() {
        assert_eq!(summed(&BAD.replace("----", "--"), 101), "4 passed, 1 failed");
    }

    #[test]
    fn what_was_skipped_is_told_with_its_reason() {
        let output =
            format!("test kprobe::lite       ... skipped: kprobe::lite: no UDP-Lite\r\nignored\n{GOOD}");
        let mut summary = Summary::default();
        summary.add_run("kernel 7.3", &output, 0);
        assert_eq!(Vec::from_iter(summary.closing()), ["skipped: kernel 7.3: kprobe::lite: no UDP-Lite"]);
    }

    #[test]
    fn second_tries_are_told_whatever_came_of_them() {
        let output = format!(
            "test kprobe::soak       ... second try: kprobe::soak: the kernel skipped 3 calls\r\n\
             second try: kprobe::x: the kernel skipped 1 call\n\
             a message that quotes \"second try: kprobe::y\"\n{GOOD}"
        );
        let mut summary = Summary::default();
        summary.add_run("kernel 6.1, kprobe", &output, 0);
        let closing: Vec<_> = summary.closing().collect();
        assert_eq!(
            closing,
            [
                "second try: kernel 6.1, kprobe: kprobe::soak: the kernel skipped 3 calls",
                "second try: kernel 6.1, kprobe: kprobe::x: the kernel skipped 1 call"
            ]
        );
        assert_eq!(summary.to_string(), "13 passed, 0 failed");
    }
}
