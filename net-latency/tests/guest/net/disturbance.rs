//! A link that loses packets and lets some overtake others.

use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::net::if_::if_nametoindex;

use super::{FAR, NEAR, NETEM_LIMIT, Path, Request, TC_H_ROOT, TCA_KIND, TCA_NETEM_LATENCY64, TCA_OPTIONS};

/// Of linux/pkt_sched.h.
const TCA_NETEM_REORDER: u16 = 3;

const DELAY: Duration = Duration::from_millis(1);
/// Shares are of 2^32. One packet in a hundred is lost, and as many are not delayed.
const LOSS: u32 = u32::MAX / 100;
const REORDER: u32 = u32::MAX / 100;

impl Path {
    /// Delays what both ends of a veth link send, loses some of it, and lets some pass the rest.
    pub(crate) fn disturb(&self) -> Result<()> {
        self.near(|| add_netem(NEAR))?;
        self.far(|| add_netem(FAR))
    }
}

fn add_netem(name: &str) -> Result<()> {
    let mut request = Request::new(libc::RTM_NEWQDISC, libc::NLM_F_CREATE | libc::NLM_F_EXCL);
    // struct tcmsg: family, interface, handle, parent, info.
    request.put(&[0; 4]);
    request.put(&if_nametoindex(name)?.to_ne_bytes());
    request.put(&0_u32.to_ne_bytes());
    request.put(&TC_H_ROOT.to_ne_bytes());
    request.put(&0_u32.to_ne_bytes());
    request.attribute(TCA_KIND, b"netem");
    let delay = i64::try_from(DELAY.as_nanos())?;
    request.nested(TCA_OPTIONS, |request| {
        // struct tc_netem_qopt: latency (given below), limit, loss, gap (1: any may be undelayed), duplicate,
        // jitter.
        for field in [0, NETEM_LIMIT, LOSS, 1, 0, 0] {
            request.put(&field.to_ne_bytes());
        }
        request.attribute(TCA_NETEM_LATENCY64, &delay.to_ne_bytes());
        // struct tc_netem_reorder: probability, correlation.
        request.attribute(TCA_NETEM_REORDER, &u64::from(REORDER).to_ne_bytes());
    });
    request.perform().with_context(|| format!("disturbing {name}"))
}
