//! Names that are wanted.

use crate::{kernel::tasks, message::tell, request::PacketFilter};

/// Says which `--comm` match no thread now. The run goes on: one may come later.
pub(crate) fn tell_unmatched(filter: &PacketFilter, is_quiet: bool) {
    // A command has its name once it begins.
    if is_quiet || filter.comms.is_empty() || filter.followed.is_some() {
        return;
    }
    match tasks::unmatched(&filter.comms) {
        Ok(globs) => {
            for glob in globs {
                tell(format_args!(
                    "no process or thread matches --comm {glob} now; one that starts later will"
                ));
            }
        }
        Err(error) => {
            tell(format_args!(
                "cannot tell whether any process or thread matches --comm: reading /proc: {error}"
            ));
        }
    }
}
