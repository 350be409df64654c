//! What was asked for: the command line, and before it the defaults from files that it leaves in force.

use std::ffi::OsString;

use clap::{ArgMatches, Command, error::ErrorKind};

use super::defaults::{Defaults, Places};
use crate::error::Failure;

/// A command line that clap accepts.
#[derive(Debug)]
pub(super) struct Invocation {
    /// With the defaults.
    pub(super) matches: ArgMatches,
    /// Without; `None` if the command line needs them.
    pub(super) alone: Option<ArgMatches>,
    pub(super) defaults: Defaults,
}

/// Why there is nothing to do.
#[derive(Debug)]
pub(super) enum Refusal {
    /// Help, version, or what clap finds wrong with the command line: clap says it, and ends the process.
    Clap(clap::Error),
    /// What is wrong with a file.
    File(Failure),
}

impl Invocation {
    /// Reads `arguments`, the first of which is the program's name.
    pub(super) fn read(
        mut command: Command,
        arguments: &[OsString],
        places: &Places,
    ) -> Result<Self, Refusal> {
        command.build();
        let parse =
            |command: &Command, arguments: &[OsString]| command.clone().try_get_matches_from(arguments);
        let alone = parse(&command, arguments);
        let partial = match &alone {
            Ok(matches) => matches.clone(),
            // Perhaps a file has it.
            Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => {
                parse(&command.clone().ignore_errors(true), arguments).map_err(Refusal::Clap)?
            }
            Err(_) => return Err(Refusal::Clap(alone.expect_err("it was just matched"))),
        };
        let defaults = Defaults::read(&command, &partial, places).map_err(Refusal::File)?;
        // A subcommand stands right behind the program's name: no option of the stream may precede it.
        let place = if partial.subcommand_name().is_some() { 2 } else { 1 };
        let (head, tail) = arguments.split_at(place.min(arguments.len()));
        let whole = [head, &defaults.arguments, tail].concat();
        match (parse(&command, &whole), alone) {
            (Ok(matches), alone) => Ok(Self { matches, alone: alone.ok(), defaults }),
            (Err(_), Err(error)) => Err(Refusal::Clap(error)),
            (Err(error), Ok(_)) => {
                let text = error.to_string();
                let what = text.split("\n\n").next().unwrap_or_default().trim_start_matches("error: ");
                let sentence = what.split_whitespace().collect::<Vec<_>>().join(" ");
                Err(Refusal::File(defaults.blame(&sentence)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use clap::{Arg, ArgAction, value_parser};

    use super::*;

    /// A tool with every kind of option, and a view that shares some.
    fn tool() -> Command {
        let values = |name: &'static str, heading| {
            Arg::new(name).long(name).value_name("N").help_heading(heading).value_parser(value_parser!(u32))
        };
        let pid = values("pid", "Packets").action(ArgAction::Append);
        let format = Arg::new("format").long("format").value_parser(["text", "json"]);
        let config = Arg::new("config").long("config").value_parser(value_parser!(std::path::PathBuf));
        let no_config = Arg::new("no_config").long("no-config").action(ArgAction::SetTrue);
        Command::new("net-latency")
            .args_conflicts_with_subcommands(true)
            .args([pid.clone(), values("count", "End"), values("keep", "Output").requires("rotate")])
            .args([values("rotate", "Output"), format.clone()])
            .arg(Arg::new("quiet").long("quiet").action(ArgAction::SetTrue).conflicts_with("verbose"))
            .arg(Arg::new("verbose").short('v').long("verbose").action(ArgAction::Count))
            .args([config.global(true), no_config.global(true)])
            .arg(Arg::new("command").num_args(1..).last(true))
            .subcommand(Command::new("top").args([
                pid,
                values("rows", "Screen"),
                format.value_parser(["screen"]),
            ]))
            .subcommand(Command::new("report").arg(Arg::new("file").required(true)))
            .subcommand(Command::new("man"))
    }

    /// What is in force for `line` with these texts as the system's and the user's file, or what is wrong.
    fn read(system: &str, user: &str, line: &str) -> Result<ArgMatches, String> {
        let directory = tempfile::tempdir().expect("temporary directory");
        let [system, user] = [("system.toml", system), ("user.toml", user)].map(|(name, text)| {
            let path = directory.path().join(name);
            fs::write(&path, text).expect("writable");
            path
        });
        let line = line.replace("DIR", directory.path().to_str().expect("UTF-8"));
        let arguments: Vec<OsString> =
            ["net-latency"].into_iter().chain(line.split_whitespace()).map(Into::into).collect();
        match Invocation::read(tool(), &arguments, &Places::at(&[&system, &user])) {
            Ok(invocation) => Ok(invocation.matches),
            Err(refusal) => {
                let sentence = match refusal {
                    Refusal::Clap(error) => error.to_string(),
                    Refusal::File(failure) => {
                        assert_eq!(failure.exit_code(), 2);
                        let sentence = failure.to_string();
                        assert_eq!(sentence.lines().count(), 1, "{sentence}");
                        sentence
                    }
                };
                Err(sentence.replace(directory.path().to_str().expect("UTF-8"), "DIR"))
            }
        }
    }

    fn numbers(matches: &ArgMatches, name: &str) -> Vec<u32> {
        matches.get_many(name).into_iter().flatten().copied().collect()
    }

    fn pids(system: &str, user: &str, line: &str) -> Vec<u32> {
        numbers(&read(system, user, line).expect("right"), "pid")
    }

    #[test]
    fn the_command_line_replaces_the_user_who_replaces_the_system() {
        assert_eq!(pids("pid = 1", "", ""), [1]);
        assert_eq!(pids("pid = 1", "pid = [2, 3]", ""), [2, 3]);
        assert_eq!(pids("pid = 1", "pid = [2, 3]", "--pid 4"), [4]);
        assert_eq!(pids("pid = 1", "pid = []", ""), [0u32; 0]);
        assert_eq!(pids("pid = 1", "pid = 2", "--no-config"), [0u32; 0]);
        assert_eq!(pids("pid = 1", "pid = 2", "--config DIR/system.toml"), [1]);
    }

    #[test]
    fn switches_and_counts_are_defaults_too() {
        let matches = read("quiet = true\nformat = 'json'", "quiet = false\nverbose = 2", "").expect("right");
        assert!(!matches.get_flag("quiet"));
        assert_eq!(matches.get_count("verbose"), 2);
        assert_eq!(matches.get_one::<String>("format").map(String::as_str), Some("json"));
        let matches = read("verbose = 2", "", "-v").expect("right");
        assert_eq!(matches.get_count("verbose"), 1, "not added up");
    }

    #[test]
    fn what_is_given_takes_back_what_it_conflicts_with() {
        let matches = read("quiet = true", "", "-vv").expect("right");
        assert_eq!((matches.get_flag("quiet"), matches.get_count("verbose")), (false, 2));
        let matches = read("verbose = 1", "quiet = true", "").expect("right");
        assert_eq!((matches.get_flag("quiet"), matches.get_count("verbose")), (true, 0));
    }

    #[test]
    fn an_option_may_need_one_that_is_in_a_file() {
        let matches = read("rotate = 5", "", "--keep 3").expect("right");
        assert_eq!((numbers(&matches, "rotate"), numbers(&matches, "keep")), (vec![5], vec![3]));
        let error = read("count = 5", "", "--keep 3").expect_err("no rotate anywhere");
        assert!(error.contains("--rotate"), "{error}");
    }

    #[test]
    fn a_view_has_the_shared_options_and_its_section() {
        let file = "pid = 1\ncount = 9\nformat = 'json'\n[top]\nrows = 20";
        let matches = read(file, "", "top").expect("right");
        let top = matches.subcommand_matches("top").expect("the view");
        assert_eq!((numbers(top, "pid"), numbers(top, "rows")), (vec![1], vec![20]));
        assert_eq!(top.get_one::<String>("format"), None, "the stream's own");
        let matches = read(file, "[top]\npid = [2]", "top --rows 3").expect("right");
        let top = matches.subcommand_matches("top").expect("the view");
        assert_eq!((numbers(top, "pid"), numbers(top, "rows")), (vec![2], vec![3]));
        // The section is not the stream's, and a section wins over the top of its file.
        assert_eq!(pids(file, "pid = 5\n[top]\npid = 6", ""), [5]);
        let matches = read(file, "pid = 5\n[top]\npid = 6", "top").expect("right");
        assert_eq!(numbers(matches.subcommand_matches("top").expect("the view"), "pid"), [6]);
        assert!(read(file, "", "report FILE").is_ok());
    }

    #[test]
    fn a_command_to_run_keeps_its_arguments() {
        let matches = read("pid = 1", "", "-- top --pid 7").expect("right");
        let command: Vec<&String> = matches.get_many("command").expect("a command").collect();
        assert_eq!(command, ["top", "--pid", "7"]);
        assert_eq!(numbers(&matches, "pid"), [1]);
    }

    #[test]
    fn wrong_files_are_named() {
        let wrong = [
            ("count = 1\nformt = 'json'", ""),
            ("zebra = 1", ""),
            ("rows = 1", ""),
            ("config = 'other.toml'", ""),
            ("[nothing]\npid = 1", ""),
            ("[man]", ""),
            ("[man]\npid = 1", ""),
            ("[top]\ncount = 1", ""),
            ("format = 'yaml'", ""),
            ("format = ['json']", ""),
            ("format = ''", ""),
            ("pid = 'firefox'", ""),
            ("pid = [1, -2]", ""),
            ("pid = true", ""),
            ("quiet = 1", ""),
            ("verbose = 'much'", ""),
            ("verbose = 256", ""),
            ("[top]\nrows = 'x'", "top"),
            ("quiet = true\nverbose = 1", ""),
            ("keep = 1", ""),
            ("", "--config DIR/none.toml"),
            ("", "--config DIR/none.toml --no-config --pid x"),
        ];
        let mut sentences = String::new();
        for (file, line) in wrong {
            match read(file, "", line) {
                Err(sentence) => sentences += sentence.lines().next().expect("a line"),
                Ok(_) => sentences += "fine",
            }
            sentences.push('\n');
        }
        insta::assert_snapshot!(sentences);
    }

    #[test]
    fn generated_texts_need_no_file() {
        assert!(read("nonsense", "", "man").is_ok());
        assert!(read("nonsense", "", "--help").expect_err("help").contains("Usage"));
    }

    #[test]
    fn places_follow_the_environment() {
        let places = |xdg: Option<&str>, home: Option<&str>| {
            let places = Places::new(|name| match name {
                "XDG_CONFIG_HOME" => xdg.map(Into::into),
                "HOME" => home.map(Into::into),
                _ => None,
            });
            format!("{places:?}")
        };
        assert!(
            places(None, Some("/root"))
                .contains("/etc/net-latency/config.toml\", \"/root/.config/net-latency/config.toml")
        );
        assert!(places(Some("/x"), Some("/root")).contains("\"/x/net-latency/config.toml\""));
        assert!(places(Some("relative"), Some("/root")).contains("\"/root/.config/"));
        assert!(!places(None, None).contains(".config"));
    }
}
