//! The net-latency command.

fn main() -> std::process::ExitCode {
    net_latency::main()
}
