//! A fuzzer's bytes as numbers and strings.
//!
//! Invariant: every input means something: what is behind its end is zero.

/// What is left of the bytes.
pub struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    pub fn new(bytes: &'a [u8]) -> Input<'a> {
        Input { bytes }
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let from = self.bytes(N);
        out[..from.len()].copy_from_slice(from);
        out
    }

    pub fn u8(&mut self) -> u8 {
        self.take::<1>()[0]
    }

    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        let wide: usize = if n > 256 {
            self.u16().into()
        } else {
            self.u8().into()
        };
        wide % n
    }

    /// A number of the size that matters: small, near a power of two, or any.
    pub fn number(&mut self) -> u64 {
        let how = self.u8();
        match how {
            0..128 => how.into(),
            128..160 => 1 << (how % 32 * 2),
            160..192 => (1 << (how % 32 * 2)) - 1,
            192..208 => !u64::from(how % 16),
            208..224 => self.u16().into(),
            224..240 => self.u32().into(),
            _ => self.u64(),
        }
    }

    /// The next `n` bytes, or as many as there are.
    pub fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (first, rest) = self.bytes.split_at(n.min(self.bytes.len()));
        self.bytes = rest;
        first
    }

    /// A string with its length before it.
    pub fn string(&mut self) -> &'a [u8] {
        let len = self.u16() % 2048;
        self.bytes(len.into())
    }

    /// Everything that is left.
    pub fn rest(&mut self) -> &'a [u8] {
        core::mem::take(&mut self.bytes)
    }
}
