//! Defaults from configuration files, as arguments that stand before those of the command line.
//!
//! What an option takes is read from the command line's definition, so that every option can be given in
//! a file, now and later.

use std::{collections::BTreeMap, ffi::OsString, path::PathBuf};

use clap::{
    Arg, ArgAction, ArgMatches, Args, Command,
    error::{ContextKind, ContextValue, ErrorKind},
    parser::ValueSource,
};

use super::config_file::{ConfigFile, Entry, Unread, Value};
use crate::error::Failure;

/// For all users of this machine.
const SYSTEM_FILE: &str = "/etc/net-latency/config.toml";
/// Below the directory for a user's configuration.
const USER_FILE: &str = "net-latency/config.toml";

/// Subcommands that take no defaults: they print what is generated, whatever is in any file.
const WITHOUT_DEFAULTS: [&str; 3] = ["completions", "help", "man"];
/// Options that make no sense in a file. A command has its user beside it.
const NEVER_IN_FILES: [&str; 5] = ["config", "help", "no-config", "user", "version"];
/// Headings of the options that mean the same in every view, as far as the bracket behind them; the others at the top of a
/// file are the stream's.
const SHARED: [&str; 2] = ["Packets", "Tracing"];

/// Which files to read, as clap reads it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Configuration")]
pub(super) struct ConfigArguments {
    /// Take defaults only from this file, not from ~/.config/net-latency/config.toml and
    /// /etc/net-latency/config.toml
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// Take no defaults from any file
    #[arg(long, global = true, conflicts_with = "config")]
    no_config: bool,
}

/// Where files are looked for.
#[derive(Debug)]
pub(super) struct Places {
    /// Lowest priority first.
    paths: Vec<PathBuf>,
}

impl Places {
    /// The system's and the user's, by the environment's variables.
    pub(super) fn new(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        // The XDG base directory specification ignores what is not absolute.
        let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = || absolute("HOME").map(|home| home.join(".config"));
        let user = absolute("XDG_CONFIG_HOME").or_else(home).map(|directory| directory.join(USER_FILE));
        Self { paths: [PathBuf::from(SYSTEM_FILE)].into_iter().chain(user).collect() }
    }

    #[cfg(test)]
    pub(super) fn at(paths: &[&std::path::Path]) -> Self {
        Self { paths: paths.iter().map(|path| path.to_path_buf()).collect() }
    }
}

/// Defaults that a command line leaves in force.
#[derive(Debug, Default)]
pub(super) struct Defaults {
    /// As arguments, to be put before the command line's.
    pub(super) arguments: Vec<OsString>,
    /// The files they are from.
    pub(super) files: Vec<PathBuf>,
    /// Files that were not read, and why.
    pub(super) passed_over: Vec<String>,
}

impl Defaults {
    /// The defaults for what a command line asks for, as far as it does not say otherwise. `command` must be built.
    ///
    /// # Errors
    /// A usage failure that names the file.
    pub(super) fn read(command: &Command, matches: &ArgMatches, places: &Places) -> Result<Self, Failure> {
        let (view, given) = match matches.subcommand() {
            Some((name, _)) if WITHOUT_DEFAULTS.contains(&name) => return Ok(Self::default()),
            Some((name, given)) => (command.find_subcommand(name), given),
            None => (None, matches),
        };
        if given.get_flag("no_config") {
            return Ok(Self::default());
        }
        let mut passed_over = Vec::new();
        let files = match given.get_one::<PathBuf>("config") {
            Some(path) => match ConfigFile::read(path) {
                Ok(file) => vec![file],
                Err(Unread::Wrong(failure)) => return Err(failure),
                Err(Unread::Foreign(why)) => return Err(Failure::Usage(why)),
                Err(Unread::Missing) => {
                    return Err(Failure::Usage(format!(
                        "cannot read {}: there is no such file",
                        path.display()
                    )));
                }
            },
            None => {
                let mut files = Vec::new();
                for path in &places.paths {
                    match ConfigFile::read(path) {
                        Ok(file) => files.push(file),
                        Err(Unread::Wrong(failure)) => return Err(failure),
                        Err(Unread::Foreign(why)) => passed_over.push(why),
                        Err(Unread::Missing) => {}
                    }
                }
                files
            }
        };
        for file in &files {
            for (name, line) in &file.sections {
                check_section(command, name).map_err(|what| file.wrong(*line, &what))?;
            }
            for entry in &file.entries {
                check(command, file, entry)?;
            }
        }
        Ok(Self { passed_over, ..Self::choose(command, view, given, &files)? })
    }

    /// Takes of the files, lowest priority first, what holds for `view`, the stream if `None`, and what the
    /// arguments that were given leave open.
    fn choose(
        command: &Command,
        view: Option<&Command>,
        given: &ArgMatches,
        files: &[ConfigFile],
    ) -> Result<Self, Failure> {
        let target = view.unwrap_or(command);
        let is_given =
            |arg: &Arg| given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine);
        let mut displacing: Vec<&Arg> = target.get_arguments().filter(|arg| is_given(arg)).collect();
        let mut defaults = Self::default();
        for file in files.iter().rev() {
            let mut chosen = BTreeMap::new();
            for entry in &file.entries {
                let holds = match &entry.view {
                    Some(name) => view.is_some_and(|view| view.get_name() == name),
                    None => view.is_none() || option(command, &entry.key).is_some_and(is_shared),
                };
                if let (true, Some(arg)) = (holds, option(target, &entry.key)) {
                    // A section's word counts more than the file's top.
                    let place = chosen.entry(entry.key.as_str()).or_insert((arg, entry));
                    if entry.view.is_some() {
                        *place = (arg, entry);
                    }
                }
            }
            chosen.retain(|_, (arg, _)| !displacing.iter().any(|by| displaces(target, by, arg)));
            for (arg, entry) in chosen.values() {
                // A view's option of the same name may take other values than the stream's.
                check_value(arg, &entry.value).map_err(|what| file.wrong(entry.line, &what))?;
                defaults.arguments.extend(arguments(arg, &entry.value));
            }
            if !chosen.is_empty() {
                defaults.files.push(file.path.clone());
            }
            displacing.extend(chosen.values().map(|(arg, _)| *arg));
        }
        Ok(defaults)
    }

    /// A failure of what would be right without them.
    pub(super) fn blame(&self, sentence: &str) -> Failure {
        Failure::Usage(format!(
            "{sentence} (with the defaults in {}; --no-config ignores them)",
            self.names()
        ))
    }

    /// The files' names for a sentence.
    pub(super) fn names(&self) -> String {
        // The user's is the more interesting one, and comes first.
        self.files.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(" and ")
    }
}

/// Whether giving one option takes back the default of another.
fn displaces(command: &Command, given: &Arg, default: &Arg) -> bool {
    let conflicts = |one: &Arg, other: &Arg| {
        command.get_arg_conflicts_with(one).iter().any(|arg| arg.get_id() == other.get_id())
    };
    given.get_id() == default.get_id() || conflicts(given, default) || conflicts(default, given)
}

fn is_shared(arg: &Arg) -> bool {
    let heading = arg.get_help_heading().and_then(|heading| heading.split(" (").next());
    heading.is_some_and(|heading| SHARED.contains(&heading))
}

/// A command's option by its long name, if it may be in a file.
fn option<'a>(command: &'a Command, long: &str) -> Option<&'a Arg> {
    command.get_arguments().find(|arg| arg.get_long() == Some(long) && !NEVER_IN_FILES.contains(&long))
}

fn takes_defaults(view: &Command) -> bool {
    !WITHOUT_DEFAULTS.contains(&view.get_name())
}

/// Checks that a section is a view's.
fn check_section(command: &Command, name: &str) -> Result<(), String> {
    let views = || command.get_subcommands().filter(|view| takes_defaults(view)).map(Command::get_name);
    if views().any(|view| view == name) {
        return Ok(());
    }
    Err(format!("unknown section [{name}]; sections are {}", views().collect::<Vec<_>>().join(", ")))
}

/// Checks that an entry, whose section is right, names an option and that its value suits it.
fn check(command: &Command, file: &ConfigFile, entry: &Entry) -> Result<(), Failure> {
    let wrong = |what: &str| file.wrong(entry.line, what);
    let target = entry.view.as_ref().and_then(|name| command.find_subcommand(name)).unwrap_or(command);
    let key = &entry.key;
    let Some(arg) = option(target, key) else {
        let owner = command
            .get_subcommands()
            .find(|view| takes_defaults(view) && option(view, key).is_some())
            .filter(|_| entry.view.is_none());
        return Err(wrong(&match (owner, suggestion(target, key)) {
            (Some(view), _) => {
                format!("{key} is an option of a subcommand; write it below [{}]", view.get_name())
            }
            (None, Some(other)) => format!("unknown key {key}; did you mean {other}?"),
            (None, None) => format!(
                "unknown key {key}; keys are the long options that `{} --help` lists, without --",
                target.get_bin_name().unwrap_or("net-latency")
            ),
        }));
    };
    check_value(arg, &entry.value).map_err(|what| wrong(&what))
}

/// The option that clap thinks was meant.
fn suggestion(command: &Command, key: &str) -> Option<String> {
    let probe = command.clone().no_binary_name(true).try_get_matches_from([format!("--{key}")]);
    match probe.err()?.get(ContextKind::SuggestedArg)? {
        ContextValue::String(long) => {
            let long = long.strip_prefix("--")?;
            option(command, long).map(|_| long.to_owned())
        }
        _ => None,
    }
}

/// Checks a value as clap will, whose sentence would name an option but no file.
fn check_value(arg: &Arg, value: &Value) -> Result<(), String> {
    let key = arg.get_long().unwrap_or_default();
    match (arg.get_action(), value) {
        (ArgAction::Set | ArgAction::Append, Value::Switch(_)) => {
            Err(format!("{key} needs a value; write {key} = {}", example(arg)))
        }
        (ArgAction::Set, Value::List(_)) => {
            Err(format!("{key} takes one value; write {key} = {}", example(arg)))
        }
        (ArgAction::Set | ArgAction::Append, _) => {
            let wrong = |(text, what): (&String, String)| format!("wrong value '{text}' for {key}: {what}");
            texts(value).iter().try_for_each(|text| check_text(arg, text).map_err(|what| wrong((text, what))))
        }
        (ArgAction::Count, Value::Number(number)) if number.parse::<u8>().is_ok() => Ok(()),
        (ArgAction::Count, _) => Err(format!("{key} is a whole number from 0 to 255; write {key} = 1")),
        (_, Value::Switch(_)) => Ok(()),
        _ => Err(format!("{key} is switched on or off; write {key} = true")),
    }
}

/// A value for an option, as one would write it in a file.
fn example(arg: &Arg) -> String {
    let possible = arg.get_possible_values();
    let name = match (possible.first(), arg.get_value_names()) {
        (Some(value), _) => value.get_name().to_owned(),
        (None, Some([name, ..])) => name.to_string(),
        (None, _) => "…".to_owned(),
    };
    format!("\"{name}\"")
}

/// What the option's own parser says of a value.
fn check_text(arg: &Arg, text: &str) -> Result<(), String> {
    let probe = Arg::new("probe").long("probe").value_parser(arg.get_value_parser().clone());
    let outcome = Command::new("probe")
        .no_binary_name(true)
        .arg(probe)
        .try_get_matches_from([format!("--probe={text}")]);
    let Err(error) = outcome else { return Ok(()) };
    if let Some(ContextValue::Strings(values)) = error.get(ContextKind::ValidValue)
        && !values.is_empty()
    {
        return Err(format!("write {}", values.join(" or ")));
    }
    Err(match (error.kind(), std::error::Error::source(&error)) {
        (ErrorKind::ValueValidation, Some(cause)) => cause.to_string(),
        _ => "a value is needed".to_owned(),
    })
}

fn texts(value: &Value) -> &[String] {
    match value {
        Value::Switch(_) => &[],
        Value::Number(text) | Value::Text(text) => std::slice::from_ref(text),
        Value::List(texts) => texts,
    }
}

/// An entry, whose value was checked, as it would stand on a command line.
fn arguments(arg: &Arg, value: &Value) -> Vec<OsString> {
    let long = arg.get_long().unwrap_or_default();
    let times = match (arg.get_action(), value) {
        (ArgAction::Set | ArgAction::Append, _) => {
            return texts(value).iter().map(|text| format!("--{long}={text}").into()).collect();
        }
        (ArgAction::Count, Value::Number(number)) => number.parse().unwrap_or(0),
        (_, value) => usize::from(*value == Value::Switch(true)),
    };
    vec![format!("--{long}").into(); times]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz;

    const WORDS: &[&str] = &[
        "\n[top]\n",
        "\n[hist]\n",
        "= true",
        "\"\"\"",
        "interval = ",
        "\"1ms\"",
        "[[",
        "{a=1}",
        "\\u0000",
        ".",
    ];

    #[test]
    fn fuzz_configuration() {
        let seeds = [
            "format = \"json\"\ninterval = \"10s\"\nport = [443, 5432]\nverbose = 1\n\n[check]\nbackend = \"kprobe\"\n",
            "# all\npid = [1]\nhost = ['192.0.2.0/24', \"::1\"]\nutc = true\nsample = \"1/8\"\n[hist]\nby = \"comm\"\nbuckets = 4096\n",
            "output = \"/tmp/x\"\nrotate-size = \"100M\"\nrotate-keep = 9\nslower = \"1ms\"\nmark = 0x10\ncomm = 'a*'\n",
        ];
        let mut tool = crate::cli::command();
        tool.build();
        let given = tool.clone().get_matches_from(["net-latency"]);
        fuzz::run("configuration", 150, seeds.map(Vec::from), WORDS, |bytes| {
            let Ok(text) = std::str::from_utf8(bytes) else { return };
            let outcome = ConfigFile::parse("config.toml".as_ref(), text).and_then(|file| {
                for (name, line) in &file.sections {
                    check_section(&tool, name).map_err(|what| file.wrong(*line, &what))?;
                }
                file.entries.iter().try_for_each(|entry| check(&tool, &file, entry))?;
                Defaults::choose(&tool, None, &given, &[file])
            });
            if let Err(failure) = outcome {
                assert!(failure.to_string().starts_with("config.toml, line "), "{failure}");
            }
        });
    }

    #[test]
    fn filters_at_the_top_of_a_file_hold_for_every_view() {
        let tool = crate::cli::command();
        for (key, is_for_all) in [("pid", true), ("control", true), ("backend", true), ("format", false)] {
            let arg = option(&tool, key).unwrap_or_else(|| panic!("no --{key}"));
            assert_eq!(is_shared(arg), is_for_all, "--{key}");
        }
    }
}
