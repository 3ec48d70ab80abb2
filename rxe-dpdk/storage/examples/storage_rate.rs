//! Rate of random reads of a file or block device: `storage_rate FILE [DEPTH [SECONDS [BYTES]]]`.
//!
//! It keeps DEPTH (32) reads of BYTES (4096) in flight for SECONDS (10), as a worker does that polls, and prints reads
//! per second and system calls per read. For comparison:
//!
//! ```sh
//! fio --name=rate --filename=FILE --rw=randread --bs=4k --iodepth=32 --direct=1 --ioengine=io_uring --runtime=10 --time_based
//! ```

use std::error::Error;
use std::path::Path;
use std::time::{Duration, Instant};

use rxe_proto::mem::HeapAllocator;
use rxe_storage::{
    BlockSize, Disk, DiskBackend, DiskOptions, Operation, Piece, Ring, RingConfig, Staging, StagingConfig, Storage,
    Submitted,
};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let Some(path) = args.first() else { return Err("usage: storage_rate FILE [DEPTH [SECONDS [BYTES]]]".into()) };
    let number = |at: usize, default: u64| args.get(at).map_or(Ok(default), |text| text.parse());
    let (depth, seconds, bytes) = (number(1, 32)?.clamp(1, 4096), number(2, 10)?, number(3, 4096)?);
    let block_size = if bytes % 4096 == 0 { BlockSize::B4096 } else { BlockSize::B512 };
    let (disk, notices) =
        Disk::open(Path::new(path), &DiskOptions { block_size, direct: true, checksums: false, read_only: false })?;
    for notice in notices {
        eprintln!("{notice}");
    }
    let places = disk.measure()?.bytes().checked_div(bytes).filter(|places| *places > 0);
    let places = places.ok_or("BYTES must be above 0, and at most the size of the file")?;

    let max_piece = bytes as usize;
    let pool = StagingConfig { bytes: max_piece.next_power_of_two().max(4096) * depth as usize, max_piece };
    let mut staging = Staging::new(&HeapAllocator, pool)?;
    let mut ring = Ring::new(RingConfig { depth: depth as u32 })?;
    if !ring.pin(staging.memory()) {
        eprintln!("the buffers are not pinned; raise the limit of locked memory (ulimit -l)");
    }
    let mut storage = Storage::new(Some(ring));
    let namespace = storage.add(Box::new(DiskBackend::new(disk, depth as u32)?))?;
    let pieces: Option<Vec<Piece>> = (0..depth).map(|_| staging.allocate(max_piece)).collect();
    let pieces = pieces.ok_or("the pool is too small")?;

    // The tokens of reads to submit. All of them at first; then those that were completed.
    let mut ready: Vec<u64> = (0..depth).collect();
    let mut completed = Vec::with_capacity(depth as usize);
    let (mut reads, mut random) = (0_u64, 0x9E37_79B9_7F4A_7C15_u64);
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(seconds) {
        for token in ready.drain(..) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let read = Operation::Read { offset: random % places * bytes, into: pieces[token as usize].memory() };
            if let Submitted::Done(result) = storage.submit(namespace, token, read)? {
                return Err(format!("a read was not started: {result:?}").into());
            }
        }
        storage.turn(&mut completed)?;
        for done in completed.drain(..) {
            done.result?;
            reads += 1;
            ready.push(done.token);
        }
    }
    let elapsed = start.elapsed().as_secs_f64();
    let enters = storage.ring().map_or(0, |ring| ring.stats().enters);
    println!(
        "reads: {reads}, {:.0} per second, {:.1} MB/s",
        reads as f64 / elapsed,
        (reads * bytes) as f64 / elapsed / 1e6
    );
    println!("system calls: {enters}, {:.3} per read", enters as f64 / reads.max(1) as f64);
    Ok(())
}
