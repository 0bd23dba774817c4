//! The options' syntax, and what is wrong with strings that are none.

use super::{ConfError, PytorchConf};
use crate::pytorch::rounding::MIB;

fn parse(text: &str) -> Result<PytorchConf, ConfError> {
    text.parse()
}

#[test]
fn without_options_all_is_the_default() {
    for text in
        ["", "  ", "backend:native", "pinned_num_register_threads:128,pinned_reserve_segment_size_mb:1"]
    {
        assert_eq!(parse(text), Ok(PytorchConf::default()), "{text}");
    }
}

#[test]
fn every_option_is_read() {
    let conf = parse(
        " max_split_size_mb : 128, max_non_split_rounding_mb:64,garbage_collection_threshold:0.8,\
         expandable_segments:True,large_segment_size_mb:32,per_process_memory_fraction:0.25,\
         roundup_power2_divisions:[2:4,>:8],release_lock_on_cudamalloc:False,pinned_use_background_threads:True,",
    )
    .unwrap();
    assert!(conf.expandable_segments);
    assert_eq!(conf.max_split_bytes, 128 * MIB);
    assert_eq!(conf.max_non_split_rounding_bytes, 64 * MIB);
    assert_eq!(conf.large_segment_bytes, 32 * MIB);
    assert_eq!((conf.garbage_collection_threshold, conf.memory_fraction), (0.8, 0.25));
    assert_eq!([MIB, 2 * MIB, 4 * MIB, 1 << 40].map(|bytes| conf.divisions.at(bytes)), [4, 4, 8, 8]);
}

#[test]
fn the_large_segment_is_read_first_and_bounds_the_others() {
    let conf = parse("max_split_size_mb:40,large_segment_size_mb:40").unwrap();
    assert_eq!((conf.max_split_bytes, conf.max_non_split_rounding_bytes), (40 * MIB, 40 * MIB));
    let key = "max_split_size_mb".to_owned();
    let refused = parse("max_split_size_mb:30,large_segment_size_mb:40");
    assert_eq!(refused, Err(ConfError::TooSmall { key, minimum: 40, value: 30 }));
}

#[test]
fn what_it_prints_reads_back() {
    for text in [
        "",
        "expandable_segments:True",
        "large_segment_size_mb:64,max_split_size_mb:128",
        "large_segment_size_mb:64,max_non_split_rounding_mb:100",
        "max_split_size_mb:200,roundup_power2_divisions:8,garbage_collection_threshold:0.5,\
         per_process_memory_fraction:0.75",
        "roundup_power2_divisions:[1:4,2:0,4:0,8:0,16:0,32:0,64:0,128:0,256:0,512:0,1024:0,2048:0,4096:0,\
         8192:0,16384:0,32768:2]",
    ] {
        let conf = parse(text).unwrap();
        assert_eq!(conf.to_string(), text);
    }
    let conf = parse("roundup_power2_divisions:[64:8,128:2,>:1]").unwrap();
    assert_eq!(parse(&conf.to_string()), Ok(conf));
}

/// What PyTorch 2.11 refuses, too, and what it says stands with the variants of the error.
#[test]
fn what_pytorch_refuses_is_refused() {
    let key = |key: &str| key.to_owned();
    let (split, rounding, large) =
        ("max_split_size_mb", "max_non_split_rounding_mb", "large_segment_size_mb");
    let (divisions, threads) = ("roundup_power2_divisions", "pinned_num_register_threads");
    let (threshold, fraction) = ("garbage_collection_threshold", "per_process_memory_fraction");
    for (text, wanted) in [
        ("nonsense:1", ConfError::UnknownKey(key("nonsense"))),
        (",", ConfError::UnknownKey(key(","))),
        (split, ConfError::Ended { key: key(split), expected: "`:`" }),
        ("max_split_size_mb:", ConfError::Ended { key: key(split), expected: "a value" }),
        ("max_split_size_mb:abc", ConfError::NotNumber { key: key(split), found: key("abc") }),
        ("max_split_size_mb:2", ConfError::TooSmall { key: key(split), minimum: 20, value: 2 }),
        ("max_non_split_rounding_mb:10", ConfError::TooSmall { key: key(rounding), minimum: 20, value: 10 }),
        ("large_segment_size_mb:10", ConfError::TooSmall { key: key(large), minimum: 11, value: 10 }),
        (
            "garbage_collection_threshold:1.2",
            ConfError::OutOfInterval { key: key(threshold), interval: "(0.0, 1.0)", value: 1.2 },
        ),
        (
            "garbage_collection_threshold:0",
            ConfError::OutOfInterval { key: key(threshold), interval: "(0.0, 1.0)", value: 0.0 },
        ),
        (
            "per_process_memory_fraction:-0.1",
            ConfError::OutOfInterval { key: key(fraction), interval: "[0.0, 1.0]", value: -0.1 },
        ),
        ("per_process_memory_fraction:x", ConfError::NotNumber { key: key(fraction), found: key("x") }),
        (
            "expandable_segments:true",
            ConfError::NotBoolean { key: key("expandable_segments"), found: key("true") },
        ),
        ("roundup_power2_divisions:3", ConfError::NotPowerOfTwo { key: key(divisions), value: 3 }),
        ("roundup_power2_divisions:0", ConfError::NotPowerOfTwo { key: key(divisions), value: 0 }),
        ("roundup_power2_divisions:[3:2]", ConfError::NotPowerOfTwo { key: key(divisions), value: 3 }),
        ("roundup_power2_divisions:[4:3]", ConfError::NotPowerOfTwo { key: key(divisions), value: 3 }),
        ("roundup_power2_divisions:[4:4", ConfError::Ended { key: key(divisions), expected: "`,` or `]`" }),
        ("pinned_num_register_threads:3", ConfError::NotPowerOfTwo { key: key(threads), value: 3 }),
        (
            "pinned_num_register_threads:1024",
            ConfError::TooLarge { key: key(threads), maximum: 128, value: 1024 },
        ),
        ("backend:foo", ConfError::UnknownBackend(key("foo"))),
    ] {
        assert_eq!(parse(text), Err(wanted), "{text}");
    }
}

/// PyTorch 2.11 reads these as something else than is written.
#[test]
fn what_pytorch_would_misread_is_refused_too() {
    let split = "max_split_size_mb".to_owned();
    let refused = parse("max_split_size_mb:200MB");
    assert_eq!(refused, Err(ConfError::NotNumber { key: split.clone(), found: "200MB".to_owned() }));
    let refused = parse("max_split_size_mb,200");
    assert_eq!(
        refused,
        Err(ConfError::Unexpected { key: split.clone(), expected: "`:`", found: ",".to_owned() })
    );
    let refused = parse("max_split_size_mb:200:expandable_segments:True");
    assert_eq!(refused, Err(ConfError::Unexpected { key: split, expected: "`,`", found: ":".to_owned() }));
    assert_eq!(
        parse("max_split_size_mb=200"),
        Err(ConfError::UnknownKey("max_split_size_mb=200".to_owned()))
    );
    assert_eq!(parse("backend:cudaMallocAsync"), Err(ConfError::OtherBackend));
}

#[test]
fn errors_quote_the_option_and_the_value() {
    let said = parse("max_split_size_mb:2").unwrap_err().to_string();
    assert_eq!(said, "option `max_split_size_mb` is at least 20, not 2");
    let said = parse("roundup_power2_divisions:[4:4").unwrap_err().to_string();
    assert_eq!(said, "option `roundup_power2_divisions` ends too early: `,` or `]` must follow");
}
