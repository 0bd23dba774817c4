//! The bytes of a file to import: read whole, unpacked if zstd, and never more of them than its size justifies.
//!
//! Main types: [`Bounds`]. Neighbours: `import` hands the bytes to the reader of their format.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use zstd::stream::read::Decoder;

use super::error::{ImportErrorKind, Misplaced, Place};
use crate::lines::Encoding;

/// The most bytes that are read of one file. Strings in a decoded pickle are kept as places in it, of 32 bits.
const MOST_BYTES: u64 = u32::MAX as u64;
/// Compressed files may unpack to this in any case.
const UNPACKED_BYTES: u64 = 16 << 20;
/// And to this many times their size. Snapshots unpack to 10 to 50 times theirs.
const UNPACKED_RATIO: u64 = 256;

/// How much of a file is read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Most bytes of the file itself.
    pub(super) bytes: u64,
    /// Most bytes that it may unpack to in any case.
    pub(super) unpacked_bytes: u64,
    /// Most bytes that one byte of it may unpack to beyond that.
    pub(super) unpacked_ratio: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { bytes: MOST_BYTES, unpacked_bytes: UNPACKED_BYTES, unpacked_ratio: UNPACKED_RATIO }
    }
}

impl Bounds {
    /// Reads a file.
    pub(super) fn open(self, path: &Path) -> Result<Vec<u8>, Misplaced> {
        let io = |error| Place::File.is_wrong(ImportErrorKind::Io(error));
        let file = File::open(path).map_err(io)?;
        let mut bytes = Vec::new();
        // One more than allowed, to see that there is more.
        file.take(self.bytes + 1).read_to_end(&mut bytes).map_err(io)?;
        self.unpack(bytes)
    }

    /// What the bytes of a file unpack to: themselves, if they are not packed.
    pub(super) fn unpack(self, bytes: Vec<u8>) -> Result<Vec<u8>, Misplaced> {
        let too_long = |most| Place::File.is_wrong(ImportErrorKind::TooLong { most });
        if bytes.len() as u64 > self.bytes {
            return Err(too_long(self.bytes));
        }
        if Encoding::of_magic(&bytes) == Encoding::Plain {
            return Ok(bytes);
        }
        let damaged = |error| Place::File.is_wrong(ImportErrorKind::Damaged(error));
        let by_size = (bytes.len() as u64).saturating_mul(self.unpacked_ratio);
        let most = by_size.max(self.unpacked_bytes).min(self.bytes);
        let mut unpacked = Vec::new();
        let decoder = Decoder::new(&bytes[..]).map_err(damaged)?;
        decoder.take(most + 1).read_to_end(&mut unpacked).map_err(damaged)?;
        if unpacked.len() as u64 > most {
            return Err(too_long(most));
        }
        Ok(unpacked)
    }
}

#[cfg(test)]
mod tests {
    use super::Bounds;
    use crate::import::ImportErrorKind;

    #[test]
    fn what_is_packed_is_unpacked_and_a_bomb_is_not() {
        let bounds = Bounds { bytes: 10_000, unpacked_bytes: 100, unpacked_ratio: 8 };
        let zeros = |bytes: usize| zstd::encode_all(&vec![0; bytes][..], 1).unwrap();
        assert_eq!(bounds.unpack(b"as it is".to_vec()).unwrap(), b"as it is");
        assert_eq!(bounds.unpack(zeros(100)).unwrap(), [0; 100]);

        // A frame of zeros takes some 20 bytes whatever it unpacks to.
        let bomb = zeros(1 << 20);
        let most = (bomb.len() as u64 * 8).max(100);
        let error = bounds.unpack(bomb).unwrap_err().kind;
        assert!(matches!(error, ImportErrorKind::TooLong { most: found } if found == most), "{error}");

        let error = bounds.unpack(vec![0; 10_001]).unwrap_err().kind;
        assert!(matches!(error, ImportErrorKind::TooLong { most: 10_000 }), "{error}");
    }

    #[test]
    fn packed_data_that_is_cut_off_is_an_error_wherever_it_is_cut() {
        let packed = zstd::encode_all(&b"id,lower,upper,size\n1,0,2,3\n"[..], 1).unwrap();
        for length in 4..packed.len() {
            let found = Bounds::default().unpack(packed[..length].to_vec());
            let kind = found.expect_err("cut off").kind;
            assert!(matches!(kind, ImportErrorKind::Damaged(_)), "{length} bytes: {kind}");
        }
    }
}
