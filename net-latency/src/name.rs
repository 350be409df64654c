//! Names that outlive what they were read from.

/// A name of any bytes that someone chose, at most N of them, in place: a copy needs no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Name<const N: usize> {
    bytes: [u8; N],
    len: u8,
}

impl<const N: usize> Name<N> {
    const LONGEST: u8 = {
        assert!(N <= u8::MAX as usize, "a byte has the length");
        N as u8
    };

    /// The name, its beginning if it is long.
    pub(crate) fn new(name: &[u8]) -> Self {
        let len = name.len().min(Self::LONGEST.into());
        let mut bytes = [0; N];
        bytes[..len].copy_from_slice(&name[..len]);
        Self { bytes, len: len as u8 }
    }

    /// One that the kernel ends by NUL; `None` if it is empty.
    pub(crate) fn of_kernel(name: &[u8]) -> Option<Self> {
        let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
        (end > 0).then(|| Self::new(&name[..end]))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len.into()]
    }
}
