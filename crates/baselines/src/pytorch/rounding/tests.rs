//! Sizes of blocks and segments.

use super::{Divisions, MIB, block_bytes, segment_bytes};
use crate::pytorch::conf::PytorchConf;

/// What PyTorch 2.11's binary allocated for so many bytes with 4 and with 8 divisions, with `[4:2,64:8,>:1]` and with
/// `[1:4,2:0,>:16]`. (Where it says 34 MiB for 33 with the third list, the segment's last 1 MiB was not split off.)
#[test]
fn divisions_are_steps_between_powers_of_two() {
    let lists = ["4", "8", "[4:2,64:8,>:1]", "[1:4,2:0,>:16]"];
    for (bytes, wanted) in [
        (1, [512; 4]),
        (512, [512; 4]),
        (513, [1024; 4]),
        (1200, [1536; 4]),
        (2048, [2048; 4]),
        // 512 × 4 is exceeded: steps of 512 with 4 divisions, of 1024 with 2.
        (2049, [2560, 2560, 3072, 2560]),
        (2100, [2560, 2560, 3072, 2560]),
        (1_500_000, [1_572_864; 4]),
        (3 * MIB, [3 * MIB; 4]),
        (3 * MIB + 1, [3_670_016, 3_407_872, 4 * MIB, 3_146_240]),
        (33 * MIB, [40 * MIB, 36 * MIB, 33 * MIB, 34 * MIB]),
    ] {
        for (list, wanted) in lists.iter().zip(wanted) {
            let conf: PytorchConf = format!("roundup_power2_divisions:{list}").parse().unwrap();
            assert_eq!(block_bytes(bytes, &conf), wanted, "{bytes} {list}");
        }
    }
}

#[test]
fn huge_divisions_round_nothing() {
    let conf = PytorchConf { divisions: Divisions::all(1 << 63), ..PytorchConf::default() };
    assert_eq!(block_bytes((1 << 59) + 1, &conf), (1 << 59) + 512);
}

#[test]
fn intervals_end_at_32_gib() {
    let mut divisions = Divisions::default();
    for (interval, value) in [(0, 2), (1, 4), (15, 8)] {
        divisions.set(interval, value);
    }
    let gib = 1_u64 << 30;
    let sizes = [512, 2 * MIB - 1, 2 * MIB, 4 * MIB - 1, 4 * MIB, 32 * gib - 1, 32 * gib, 1 << 50];
    assert_eq!(sizes.map(|bytes| divisions.at(bytes)), [2, 2, 4, 4, 0, 0, 8, 8]);
}

#[test]
fn segments_are_small_large_or_of_their_own_size() {
    let conf = PytorchConf::default();
    for (bytes, segment) in [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
    ] {
        assert_eq!(segment_bytes(bytes, &conf), segment, "{bytes}");
    }
}
