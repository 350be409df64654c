//! TLS in the kernel: both ends agree on keys without a handshake.

use std::net::TcpStream;

use anyhow::{Context as _, Result};
use nix::{
    libc,
    sys::socket::{
        setsockopt,
        sockopt::{TcpTlsRx, TcpTlsTx, TcpUlp, TlsCryptoInfo},
    },
};

/// Lets the kernel encrypt what the stream sends from now on, and decrypt what it receives.
pub(super) fn encrypt(stream: &TcpStream, is_client: bool) -> Result<()> {
    setsockopt(stream, TcpUlp::default(), b"tls").context("TCP_ULP tls")?;
    let (to_server, to_client) = (keys(b"to the server..."), keys(b"to the client..."));
    let (transmit, receive) = if is_client { (to_server, to_client) } else { (to_client, to_server) };
    setsockopt(stream, TcpTlsTx, &transmit).context("TLS_TX")?;
    setsockopt(stream, TcpTlsRx, &receive).context("TLS_RX")?;
    Ok(())
}

fn keys(key: &[u8; libc::TLS_CIPHER_AES_GCM_128_KEY_SIZE]) -> TlsCryptoInfo {
    TlsCryptoInfo::Aes128Gcm(libc::tls12_crypto_info_aes_gcm_128 {
        info: libc::tls_crypto_info {
            version: libc::TLS_1_2_VERSION,
            cipher_type: libc::TLS_CIPHER_AES_GCM_128,
        },
        iv: [1; libc::TLS_CIPHER_AES_GCM_128_IV_SIZE],
        key: *key,
        salt: [2; libc::TLS_CIPHER_AES_GCM_128_SALT_SIZE],
        rec_seq: [0; libc::TLS_CIPHER_AES_GCM_128_REC_SEQ_SIZE],
    })
}
