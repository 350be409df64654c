//! `@FILE` on the command line: the lines of FILE stand in its place, one argument a line.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::Read as _,
    os::unix::ffi::OsStrExt as _,
    path::Path,
};

use crate::error::Failure;

/// The largest file, in bytes.
const MOST: u64 = 1 << 20;

/// The command line, the program's name first, with the lines of each file that it names. What follows `--` belongs
/// to COMMAND and stays as it is.
pub(super) fn expand(arguments: Vec<OsString>) -> Result<Vec<OsString>, Failure> {
    let mut expanded = Vec::new();
    let mut is_command = false;
    for (place, argument) in arguments.into_iter().enumerate() {
        let begin = expanded.len();
        match argument.as_bytes() {
            [b'@', path @ ..] if place > 0 && !is_command && !path.is_empty() => {
                expanded.extend(read(Path::new(OsStr::from_bytes(path)))?);
            }
            _ => expanded.push(argument),
        }
        is_command |= expanded[begin..].iter().any(|argument| argument == "--");
    }
    Ok(expanded)
}

fn read(path: &Path) -> Result<Vec<OsString>, Failure> {
    let unreadable = |what: &str| Failure::Usage(format!("cannot read {}: {what}", path.display()));
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(MOST + 1).read_to_end(&mut bytes))
        .map_err(|error| unreadable(&error.to_string()))?;
    if bytes.len() as u64 > MOST {
        return Err(unreadable("it has more than 1 MiB"));
    }
    let text = str::from_utf8(&bytes).map_err(|_| unreadable("it is not UTF-8 text"))?;
    parse(text).map_err(|(line, what)| Failure::Usage(format!("{}, line {line}: {what}", path.display())))
}

/// The arguments in a file's text, or which line is wrong, and why.
fn parse(text: &str) -> Result<Vec<OsString>, (usize, String)> {
    let mut arguments = Vec::new();
    let mut is_command = false;
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        if line.contains(char::is_control) {
            return Err((number, "it has a control character".to_owned()));
        }
        if !is_command && line.starts_with('@') {
            return Err((number, "a file of arguments can't name another".to_owned()));
        }
        if let Some((option, value)) = line.split_once(char::is_whitespace)
            && !is_command
            && is_whole(option)
        {
            let (value, join) = (value.trim_start(), if option.starts_with("--") { "=" } else { "" });
            return Err((number, format!("one argument a line: write {option}{join}{value}")));
        }
        is_command |= line == "--";
        arguments.push(line.into());
    }
    Ok(arguments)
}

/// Whether it is an option's name with no value behind it.
fn is_whole(option: &str) -> bool {
    let is_short = option.starts_with('-') && option.len() == 2;
    is_short || option.starts_with("--") && !option.contains('=')
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::fuzz;

    fn words(arguments: &[&str]) -> Vec<OsString> {
        arguments.iter().map(Into::into).collect()
    }

    #[test]
    fn lines_stand_where_the_file_is_named() {
        let folder = tempfile::tempdir().expect("temporary directory");
        let file = folder.path().join("file");
        fs::write(&file, "# mine\n--port\n443\r\n\n  --output=/a b = c\n-v").expect("writable");
        let file = format!("@{}", file.display());
        let arguments = words(&["@name", "top", &file, "-4", "@", "--", "curl", &file]);
        let expected =
            ["@name", "top", "--port", "443", "--output=/a b = c", "-v", "-4", "@", "--", "curl", &file];
        assert_eq!(expand(arguments).expect("right"), words(&expected));
    }

    #[test]
    fn a_file_may_hold_a_command() {
        let text = "--port=1\n--\ncurl\n--data @x\n@x";
        assert_eq!(parse(text).expect("right"), words(&["--port=1", "--", "curl", "--data @x", "@x"]));
        let folder = tempfile::tempdir().expect("temporary directory");
        let file = folder.path().join("file");
        fs::write(&file, text).expect("writable");
        let arguments = words(&["net-latency", &format!("@{}", file.display()), "@y"]);
        assert_eq!(expand(arguments).expect("right").last(), Some(&"@y".into()));
    }

    #[test]
    fn files_that_hold_no_arguments_are_refused_in_a_sentence() {
        let folder = tempfile::tempdir().expect("temporary directory");
        let place = folder.path().to_str().expect("UTF-8");
        let wrong: [(&str, &[u8]); 8] = [
            ("latin", b"--comm=\xff"),
            ("nul", b"-v\n--comm=a\0b"),
            ("escape", b"\x1b[2J"),
            ("itself", b"\n@itself"),
            ("pair", b"--port 443"),
            ("short", b"-p  443"),
            ("large", &[b'\n'; (1 << 20) + 1]),
            ("folder/file", b""),
        ];
        let mut said = String::new();
        for (name, bytes) in wrong {
            let _is_missing = fs::write(folder.path().join(name), bytes);
            said += &sentence(&format!("@{place}/{name}")).replace(place, "DIR");
        }
        for path in ["/", "/dev/zero"] {
            said += &sentence(&format!("@{path}"));
        }
        insta::assert_snapshot!(said);
    }

    fn sentence(argument: &str) -> String {
        let failure = expand(words(&["net-latency", argument])).expect_err(argument);
        assert_eq!((failure.exit_code(), failure.to_string().lines().count()), (2, 1));
        format!("{failure}\n")
    }

    #[test]
    fn fuzz_argument_files() {
        let seeds = ["# all\n--format=json\n--port\n443\n\n-v", "top\n--sort=time\r\n", "--\nsh\n-c\nx y"];
        let words = &["\n@", "\n--", " ", "\0", "\n#", "=", "\r\n", "\u{85}"];
        fuzz::run("argument files", 300, seeds.map(Vec::from), words, |bytes| {
            let Ok(text) = str::from_utf8(bytes) else { return };
            if let Ok(arguments) = parse(text) {
                assert!(arguments.len() <= text.lines().count());
                assert!(arguments.iter().all(|argument| !argument.as_bytes().contains(&0)));
            }
        });
    }
}
