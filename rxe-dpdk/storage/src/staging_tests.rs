use proptest::prelude::*;
use rxe_proto::mem::HeapAllocator;

use super::*;

fn pool(bytes: usize, max_piece: usize) -> Staging {
    Staging::new(&HeapAllocator, StagingConfig { bytes, max_piece }).unwrap()
}

#[test]
fn the_default_is_64_mib_in_pieces_of_1_mib() {
    let mut staging = Staging::new(&HeapAllocator, StagingConfig::default()).unwrap();
    let pieces: Vec<Piece> = (0..64).map(|_| staging.allocate(1 << 20).unwrap()).collect();
    assert!(staging.allocate(1).is_none());
    let full = StagingStats { capacity: 64 << 20, in_use: 64 << 20, peak: 64 << 20, refused: 1 };
    assert_eq!(staging.stats(), full);
    for piece in pieces {
        staging.free(piece);
    }
    assert_eq!(staging.stats(), StagingStats { in_use: 0, ..full });
}

#[test]
fn pages_join_again_to_the_largest_piece_in_any_order() {
    let mut staging = pool(1 << 20, 1 << 20);
    let mut pieces: Vec<Option<Piece>> = (0..256).map(|_| staging.allocate(PAGE)).collect();
    assert!(staging.allocate(1).is_none());
    for step in 0..256 {
        assert!(staging.allocate(1 << 20).is_none());
        staging.free(pieces[step * 37 % 256].take().unwrap());
    }
    let whole = staging.allocate(1 << 20).unwrap();
    staging.free(whole);
}

#[test]
fn a_piece_beyond_the_largest_is_refused() {
    let mut staging = pool(1 << 20, 128 << 10);
    assert!(staging.allocate((128 << 10) + 1).is_none());
    assert_eq!((staging.max_piece(), staging.stats().refused), (128 << 10, 1));
}

proptest! {
    #[test]
    fn pieces_never_overlap_and_all_room_comes_back(
        steps in proptest::collection::vec((0_usize..300 << 10, any::<bool>(), any::<usize>()), 1..120)
    ) {
        let mut staging = pool(2 << 20, 256 << 10);
        let mut held: Vec<(Piece, u8)> = Vec::new();
        for (number, (len, take, which)) in steps.into_iter().enumerate() {
            if take {
                let Some(piece) = staging.allocate(len) else { continue };
                prop_assert_eq!(piece.memory().len(), len);
                prop_assert_eq!(piece.memory().as_ptr().addr() % PAGE, 0);
                piece.memory().fill(0, len, number as u8).unwrap();
                held.push((piece, number as u8));
            } else if !held.is_empty() {
                let (piece, mark) = held.swap_remove(which % held.len());
                let mut bytes = vec![0; piece.memory().len()];
                piece.memory().read(0, &mut bytes).unwrap();
                prop_assert!(bytes.iter().all(|byte| *byte == mark));
                staging.free(piece);
            }
        }
        for (piece, _) in held {
            staging.free(piece);
        }
        prop_assert_eq!(staging.stats().in_use, 0);
        for _ in 0..8 {
            prop_assert!(staging.allocate(256 << 10).is_some());
        }
    }
}
