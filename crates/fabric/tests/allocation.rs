//! The hot path of the shared-memory rail allocates nothing, as a counting allocator shows.
#![allow(unsafe_code, reason = "an allocator is an unsafe trait")]

#[allow(dead_code, reason = "the suite uses the rest")]
#[path = "conformance/pairs.rs"]
mod pairs;

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use plexus_fabric::{Lane, Put};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// This binary has no other test, so that no other thread is counted.
#[test]
fn sending_putting_and_polling_over_shm_allocate_nothing() {
    let (mut a, mut b) = pairs::pair(pairs::Kind::Shm);
    let data = [7; 4096];
    let mut came = 0;
    // The first round does not count: threads of the test harness may still be starting.
    for counted in [false, true] {
        let before = ALLOCATIONS.load(Relaxed);
        for round in 0..10_000u64 {
            for lane in Lane::ALL {
                let put =
                    Put { window: pairs::WHOLE, offset: round % 512 * 4096, generation: 0, data: &data };
                let _ = a.rail.send(lane, &[1; 16], &data[..round as usize % 4096]);
                let _ = a.rail.put(lane, put, &[1; 16], &[2; 40]);
            }
            a.rail.flush().unwrap();
            came += b.rail.poll(8, &mut |_, frame| assert!(!frame.is_empty())).unwrap();
            b.rail.pending();
            b.rail.flush().unwrap();
        }
        assert!(!counted || ALLOCATIONS.load(Relaxed) == before, "something was allocated");
    }
    assert!(came > 10_000);
}
