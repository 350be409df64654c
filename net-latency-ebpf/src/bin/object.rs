//! What each object needs beside its programs.

#[cfg(not(test))]
#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // No program panics: the verifier refuses one that could come here, this being an endless loop.
    loop {}
}

/// The tracing helpers are for programs under a GPL-compatible licence.
#[unsafe(link_section = "license")]
#[unsafe(no_mangle)]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
