//! Whether this user may trace on this kernel, found out before anything is attached. Each failure
//! names its remedy.

use std::fs;

use crate::error::Failure;

// Numbers of capabilities (include/uapi/linux/capability.h).
const CAP_SYS_ADMIN: u32 = 21;
const CAP_PERFMON: u32 = 38;
const CAP_BPF: u32 = 39;

/// Checks privileges and lockdown.
///
/// # Errors
/// [`Failure::CannotTrace`] with the remedy.
pub fn check() -> Result<(), Failure> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    capabilities(&status).map_err(Failure::CannotTrace)?;
    // Without securityfs the state is unknown; then loading says whether it works.
    let lockdown = fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    locked_down(&lockdown).map_err(Failure::CannotTrace)
}

/// `status` is the text of /proc/self/status.
fn capabilities(status: &str) -> Result<(), String> {
    let effective = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|value| u64::from_str_radix(value.trim(), 16).ok());
    // Where it can't be read, loading will tell.
    let Some(effective) = effective else { return Ok(()) };
    let has = |capability: u32| effective >> capability & 1 == 1;
    // CAP_SYS_ADMIN includes the other two (`bpf_capable`, `perfmon_capable`, Linux 5.8).
    let missing: Vec<&str> = [(CAP_BPF, "CAP_BPF"), (CAP_PERFMON, "CAP_PERFMON")]
        .into_iter()
        .filter(|&(capability, _)| !has(capability) && !has(CAP_SYS_ADMIN))
        .map(|(_, name)| name)
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!(
        "tracing the kernel needs {}, which this user lacks; run it with sudo, or grant it with setcap \
         cap_bpf,cap_perfmon+ep",
        missing.join(" and ")
    ))
}

/// `text` is that of /sys/kernel/security/lockdown, the current mode in brackets. At "confidentiality"
/// the kernel refuses kprobes and `bpf_probe_read_kernel` (`LOCKDOWN_KPROBES`, `LOCKDOWN_BPF_READ_KERNEL`);
/// "integrity" allows both.
fn locked_down(text: &str) -> Result<(), String> {
    if text.contains("[confidentiality]") {
        return Err(
            "the kernel is locked down (confidentiality), so that nobody may read its memory; boot with \
                    lockdown=integrity or lockdown=none to trace"
                .to_owned(),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(effective: u64) -> String {
        format!("Name:\tnet-latency\nCapPrm:\t000001ffffffffff\nCapEff:\t{effective:016x}\n")
    }

    #[test]
    fn root_and_the_two_capabilities_suffice() {
        assert_eq!(capabilities(&status(0x1ff_ffff_ffff)), Ok(()));
        assert_eq!(capabilities(&status(1 << CAP_BPF | 1 << CAP_PERFMON)), Ok(()));
        assert_eq!(capabilities(&status(1 << CAP_SYS_ADMIN)), Ok(()));
    }

    #[test]
    fn what_is_missing_is_named() {
        let message = capabilities(&status(0)).unwrap_err();
        assert!(message.contains("CAP_BPF and CAP_PERFMON") && message.contains("sudo"), "{message}");
        let message = capabilities(&status(1 << CAP_BPF)).unwrap_err();
        assert!(message.contains("needs CAP_PERFMON,"), "{message}");
    }

    #[test]
    fn only_confidentiality_forbids() {
        assert_eq!(locked_down("none [integrity] confidentiality\n"), Ok(()));
        assert_eq!(locked_down("[none] integrity confidentiality\n"), Ok(()));
        assert_eq!(locked_down(""), Ok(()));
        assert!(locked_down("none integrity [confidentiality]\n").unwrap_err().contains("locked down"));
    }
}
