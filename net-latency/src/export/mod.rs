//! Counts of times as metrics, for a scraper such as Prometheus.
//!
//! [`groups`] puts the kernel side's counts together by names that [`names`] finds; [`families`] makes
//! metrics of them ([`model`], [`cells`]), [`form`] writes these as a scraper wants them, and [`server`] answers it,
//! where [`listener`] listens.

mod cells;
pub(crate) mod families;
pub(crate) mod form;
pub(crate) mod groups;
pub(crate) mod listener;
mod model;
pub(crate) mod names;
pub(crate) mod process;
pub(crate) mod server;
