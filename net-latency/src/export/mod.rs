//! Counts of times as metrics, for a scraper such as Prometheus.
//!
//! [`groups`] puts the kernel side's counts together by names that [`names`] finds; [`families`] and [`connections`] make
//! metrics of them ([`model`], [`cells`]), [`form`] writes these as a scraper wants them, and [`server`] answers it,
//! where [`listener`] listens.

mod cells;
pub(crate) mod connections;
pub(crate) mod families;
pub(crate) mod form;
pub(crate) mod groups;
pub(crate) mod listener;
pub(crate) mod model;
pub(crate) mod names;
pub(crate) mod process;
pub(crate) mod server;
