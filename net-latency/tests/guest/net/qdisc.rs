//! Queueing disciplines at the ends of a link: what delays, drops, doubles, reorders and limits packets.

use std::time::Duration;

use anyhow::{Context as _, Result};
use nix::net::if_::if_nametoindex;

use super::{FAR, NEAR, Path, Request};

// Of linux/rtnetlink.h and linux/pkt_sched.h.
const TC_H_ROOT: u32 = u32::MAX;
const TC_H_INGRESS: u32 = 0xffff_fff1;
const INGRESS_HANDLE: u32 = 0xffff_0000;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_NETEM_REORDER: u16 = 3;
const TCA_NETEM_LATENCY64: u16 = 10;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_BURST: u16 = 6;
const TC_LINKLAYER_ETHERNET: u8 = 1;
// Of linux/pkt_cls.h and linux/tc_act/tc_mirred.h.
const TCA_MATCHALL_ACT: u16 = 2;
const TCA_ACT_KIND: u16 = 1;
const TCA_ACT_OPTIONS: u16 = 2;
const TCA_MIRRED_PARMS: u16 = 2;
const TC_ACT_PIPE: u32 = 3;
const TC_ACT_STOLEN: u32 = 4;
const TCA_EGRESS_REDIR: u32 = 1;
const TCA_EGRESS_MIRROR: u32 = 2;
/// Probabilities are fractions of this.
const ALWAYS: u32 = u32::MAX;
/// More packets than any case has in flight.
const NETEM_LIMIT: u32 = 100_000;

/// What netem does with packets.
#[derive(Clone, Copy, Default)]
pub(super) struct Netem {
    delay: Duration,
    /// Probabilities.
    loss: u32,
    duplicate: u32,
    /// Of being sent at once, for every `gap`th packet.
    reorder: u32,
    gap: u32,
}

impl Path {
    /// Drops all that the client's end sends, unseen by TCP, until [`Self::deliver`].
    pub(crate) fn lose(&self) -> Result<()> {
        self.near(|| Netem { loss: ALWAYS, ..Netem::default() }.apply(NEAR))
    }

    /// Drops N of a hundred packets that the client's end sends, at random.
    pub(crate) fn lose_some(&self, percent: u32) -> Result<()> {
        self.near(|| Netem { loss: ALWAYS / 100 * percent, ..Netem::default() }.apply(NEAR))
    }

    /// Ends what [`Self::lose`] began.
    pub(crate) fn deliver(&self) -> Result<()> {
        self.near(|| Netem::default().apply(NEAR))
    }

    /// Doubles every packet that the client's end sends.
    pub(crate) fn duplicate(&self) -> Result<()> {
        self.near(|| Netem { duplicate: ALWAYS, ..Netem::default() }.apply(NEAR))
    }

    /// Delays what the client's end sends, but for every fourth packet, which overtakes the others.
    pub(crate) fn reorder(&self, delay: Duration) -> Result<()> {
        self.near(|| Netem { delay, reorder: ALWAYS, gap: 4, ..Netem::default() }.apply(NEAR))
    }

    /// Delays what both ends send, loses some of it, and lets some pass the rest.
    pub(crate) fn disturb(&self) -> Result<()> {
        const ONE_IN_A_HUNDRED: u32 = ALWAYS / 100;
        let netem = Netem {
            delay: Duration::from_millis(1),
            loss: ONE_IN_A_HUNDRED,
            reorder: ONE_IN_A_HUNDRED,
            gap: 1,
            ..Netem::default()
        };
        self.near(|| netem.apply(NEAR))?;
        self.far(|| netem.apply(FAR))
    }

    /// Gives the client's end the fair queue, which keeps to the times that TCP's pacing sets.
    pub(crate) fn fair_queue(&self) -> Result<()> {
        self.near(|| replace(NEAR, "fq", |_| {}))
    }

    /// Limits what the client's end sends to `rate` bytes per second, after a burst of `burst` bytes.
    pub(crate) fn limit(&self, rate: u32, burst: u32) -> Result<()> {
        const QUEUE: u32 = 1 << 20;
        self.near(|| {
            replace(NEAR, "tbf", |request| {
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

impl Netem {
    /// Loses one packet in N, at random.
    pub(super) fn lose(one_in: u32) -> Self {
        Self { loss: ALWAYS / one_in, ..Self::default() }
    }

    /// Delays all packets.
    pub(super) fn delay(delay: Duration) -> Self {
        Self { delay, ..Self::default() }
    }

    /// Gives it to the device.
    pub(super) fn apply(self, device: &str) -> Result<()> {
        let delay = i64::try_from(self.delay.as_nanos())?;
        replace(device, "netem", |request| {
            // struct tc_netem_qopt: latency (given below, exactly), limit, loss, gap, duplicate, jitter.
            for field in [0, NETEM_LIMIT, self.loss, self.gap, self.duplicate, 0] {
                request.put(&field.to_ne_bytes());
            }
            request.attribute(TCA_NETEM_LATENCY64, &delay.to_ne_bytes());
            if self.gap != 0 {
                // struct tc_netem_reorder: probability, correlation.
                let reorder = [self.reorder.to_ne_bytes(), [0; 4]].concat();
                request.attribute(TCA_NETEM_REORDER, &reorder);
            }
        })
    }
}

/// Sends a copy of all that `device` receives by another device, before the stack has it.
pub(super) fn mirror(device: &str, to: &str) -> Result<()> {
    pass(device, to, [TC_ACT_PIPE, TCA_EGRESS_MIRROR])
}

/// Sends all that `device` receives by another device, instead of giving it to the stack.
pub(super) fn redirect(device: &str, to: &str) -> Result<()> {
    pass(device, to, [TC_ACT_STOLEN, TCA_EGRESS_REDIR])
}

/// Does the one with all that `device` receives, and gives it to another one in that way.
fn pass(device: &str, to: &str, [verdict, way]: [u32; 2]) -> Result<()> {
    let flags = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    let mut ingress = traffic_control(libc::RTM_NEWQDISC, flags, device, [INGRESS_HANDLE, TC_H_INGRESS, 0])?;
    ingress.attribute(TCA_KIND, b"ingress");
    ingress.perform().with_context(|| format!("filters for what {device} receives"))?;
    // The first priority, and packets of all protocols.
    let what = 1 << 16 | u32::from(u16::try_from(libc::ETH_P_ALL)?.to_be());
    let mut filter = traffic_control(libc::RTM_NEWTFILTER, flags, device, [0, INGRESS_HANDLE, what])?;
    filter.attribute(TCA_KIND, b"matchall");
    let to = if_nametoindex(to)?;
    filter.nested(TCA_OPTIONS, |filter| {
        filter.nested(TCA_MATCHALL_ACT, |actions| {
            actions.nested(1, |action| {
                action.attribute(TCA_ACT_KIND, b"mirred");
                action.nested(TCA_ACT_OPTIONS, |action| {
                    // struct tc_mirred: index, capabilities, action, references, bindings, what to do, a device.
                    let fields = [0, 0, verdict, 0, 0, way, to];
                    action.attribute(TCA_MIRRED_PARMS, &fields.map(u32::to_ne_bytes).concat());
                });
            });
        });
    });
    filter.perform().with_context(|| format!("passing on what {device} receives"))
}

/// A request that begins with a struct tcmsg: family, interface, and these: handle, parent, info.
fn traffic_control(kind: u16, flags: libc::c_int, device: &str, fields: [u32; 3]) -> Result<Request> {
    let mut request = Request::new(kind, flags);
    request.put(&[0; 4]);
    request.put(&if_nametoindex(device)?.to_ne_bytes());
    request.put(&fields.map(u32::to_ne_bytes).concat());
    Ok(request)
}

/// Gives the device a queueing discipline, or its present one, if it is of that kind, other settings.
fn replace(device: &str, kind: &str, fill: impl FnOnce(&mut Request)) -> Result<()> {
    let flags = libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
    let mut request = traffic_control(libc::RTM_NEWQDISC, flags, device, [0, TC_H_ROOT, 0])?;
    request.attribute(TCA_KIND, kind.as_bytes());
    request.nested(TCA_OPTIONS, fill);
    request.perform().with_context(|| format!("giving {device} the discipline {kind}"))
}
