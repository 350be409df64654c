//! Queueing disciplines at the client's end of a link: what delays, drops, doubles and limits packets.

use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::net::if_::if_nametoindex;

use super::{NEAR, NETEM_LIMIT, Path, Request, TC_H_ROOT, TCA_KIND, TCA_NETEM_LATENCY64, TCA_OPTIONS};

// Of linux/pkt_sched.h.
const TCA_NETEM_REORDER: u16 = 3;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_BURST: u16 = 6;
const TC_LINKLAYER_ETHERNET: u8 = 1;
/// Probabilities are fractions of this.
const ALWAYS: u32 = u32::MAX;

impl Path {
    /// Drops all that the client's end sends, unseen by TCP, until [`Self::deliver`].
    pub(crate) fn lose(&self) -> Result<()> {
        self.near(|| netem(Duration::ZERO, ALWAYS, 0, 0))
    }

    /// Ends what [`Self::lose`] began.
    pub(crate) fn deliver(&self) -> Result<()> {
        self.near(|| netem(Duration::ZERO, 0, 0, 0))
    }

    /// Doubles every packet that the client's end sends.
    pub(crate) fn duplicate(&self) -> Result<()> {
        self.near(|| netem(Duration::ZERO, 0, ALWAYS, 0))
    }

    /// Delays what the client's end sends, but for every fourth packet, which overtakes the others.
    pub(crate) fn reorder(&self, delay: Duration) -> Result<()> {
        self.near(|| netem(delay, 0, 0, 4))
    }

    /// Gives the client's end the fair queue, which keeps to the times that TCP's pacing sets.
    pub(crate) fn fair_queue(&self) -> Result<()> {
        self.near(|| replace("fq", |_| {}))
    }

    /// Limits what the client's end sends to `rate` bytes per second, after a burst of `burst` bytes.
    pub(crate) fn limit(&self, rate: u32, burst: u32) -> Result<()> {
        const QUEUE: u32 = 1 << 20;
        self.near(|| {
            replace("tbf", |request| {
                let mut parameters = Vec::new();
                // struct tc_tbf_qopt: the rate (cell_log, link layer, overhead, cell_align, mpu, rate),
                // no peak rate, limit, buffer (given below), mtu.
                parameters.extend_from_slice(&[0, TC_LINKLAYER_ETHERNET, 0, 0, 0, 0, 0, 0]);
                for field in [rate, 0, 0, 0, QUEUE, 0, 0] {
                    parameters.extend_from_slice(&field.to_ne_bytes());
                }
                request.attribute(TCA_TBF_PARMS, &parameters);
                request.attribute(TCA_TBF_BURST, &burst.to_ne_bytes());
            })
        })
    }
}

fn netem(delay: Duration, loss: u32, duplicate: u32, gap: u32) -> Result<()> {
    let delay = i64::try_from(delay.as_nanos())?;
    replace("netem", |request| {
        // struct tc_netem_qopt: latency (given below), limit, loss, gap, duplicate, jitter.
        for field in [0, NETEM_LIMIT, loss, gap, duplicate, 0] {
            request.put(&field.to_ne_bytes());
        }
        request.attribute(TCA_NETEM_LATENCY64, &delay.to_ne_bytes());
        if gap != 0 {
            // struct tc_netem_reorder: probability, correlation.
            let always = [ALWAYS.to_ne_bytes(), [0; 4]].concat();
            request.attribute(TCA_NETEM_REORDER, &always);
        }
    })
}

/// Gives the device a queueing discipline, or its present one, if it is of that kind, other settings.
fn replace(kind: &str, fill: impl FnOnce(&mut Request)) -> Result<()> {
    let mut request = Request::new(libc::RTM_NEWQDISC, libc::NLM_F_CREATE | libc::NLM_F_REPLACE);
    // struct tcmsg: family, interface, handle, parent, info.
    request.put(&[0; 4]);
    request.put(&if_nametoindex(NEAR)?.to_ne_bytes());
    request.put(&0_u32.to_ne_bytes());
    request.put(&TC_H_ROOT.to_ne_bytes());
    request.put(&0_u32.to_ne_bytes());
    request.attribute(TCA_KIND, kind.as_bytes());
    request.nested(TCA_OPTIONS, fill);
    request.perform().with_context(|| format!("giving {NEAR} the discipline {kind}"))
}
