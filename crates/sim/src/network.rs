//! Directed paths with lanes: frames are late, in order within a lane, limited in number, and lost
//! by a cut.

use std::collections::VecDeque;

use crate::Random;

/// One direction of one rail.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PathId(pub usize);

/// The distribution of frame delays.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delay {
    /// The minimum, in nanoseconds.
    pub least: u64,
    /// The usual maximum, in nanoseconds.
    pub most: u64,
    /// The share of frames, in thousandths, that take up to fifty times as long.
    pub slow_permille: u64,
}

impl Delay {
    /// Draws the delay of one frame.
    pub fn draw(&self, random: &mut Random) -> u64 {
        let delay = random.between(self.least, self.most);
        if self.slow_permille > 0 && random.permille(self.slow_permille) {
            delay * random.between(2, 50)
        } else {
            delay
        }
    }
}

struct LaneState<F> {
    frames: VecDeque<(u64, F)>,
    last_arrival: u64,
}

struct Path<F> {
    up: bool,
    slots: usize,
    delay: Delay,
    lanes: Vec<LaneState<F>>,
}

/// All paths, and the frames under way on them.
pub struct Network<F> {
    paths: Vec<Path<F>>,
}

impl<F> Default for Network<F> {
    fn default() -> Self {
        Self { paths: Vec::new() }
    }
}

impl<F> Network<F> {
    /// Adds a path with `lanes` lanes of `slots` slots each.
    pub fn add(&mut self, lanes: usize, slots: usize, delay: Delay) -> PathId {
        let lanes = (0..lanes).map(|_| LaneState { frames: VecDeque::new(), last_arrival: 0 }).collect();
        self.paths.push(Path { up: true, slots, delay, lanes });
        PathId(self.paths.len() - 1)
    }

    /// Sends a frame and returns the time from `now` until it arrives. The caller schedules the
    /// receipt. A frame occupies its slot until it is received. `None`: the path is cut, or every
    /// slot of the lane is occupied.
    pub fn send(
        &mut self,
        path: PathId,
        lane: usize,
        frame: F,
        now: u64,
        random: &mut Random,
    ) -> Option<u64> {
        if !self.has_room(path, lane) {
            return None;
        }
        let path = &mut self.paths[path.0];
        let state = &mut path.lanes[lane];
        let arrival = (now + path.delay.draw(random)).max(state.last_arrival);
        state.last_arrival = arrival;
        state.frames.push_back((arrival, frame));
        Some(arrival - now)
    }

    /// Takes the next frame of a lane that has arrived by `now`, and frees its slot.
    pub fn receive(&mut self, path: PathId, lane: usize, now: u64) -> Option<F> {
        let frames = &mut self.paths[path.0].lanes[lane].frames;
        if frames.front()?.0 > now {
            return None;
        }
        frames.pop_front().map(|(_, frame)| frame)
    }

    /// Returns true if a lane has a free slot.
    pub fn has_room(&self, path: PathId, lane: usize) -> bool {
        let path = &self.paths[path.0];
        path.up && path.lanes[lane].frames.len() < path.slots
    }

    /// Cuts a path, and returns the number of frames lost on it.
    pub fn cut(&mut self, path: PathId) -> usize {
        let path = &mut self.paths[path.0];
        path.up = false;
        path.lanes.iter_mut().map(|lane| lane.frames.drain(..).count()).sum()
    }

    /// Replaces a cut path with an empty one with lanes of `slots` slots.
    pub fn restore(&mut self, path: PathId, slots: usize) {
        let path = &mut self.paths[path.0];
        (path.up, path.slots) = (true, slots);
    }

    /// Returns true if the path is not cut.
    pub fn is_up(&self, path: PathId) -> bool {
        self.paths[path.0].up
    }

    /// Returns the number of frames under way on all paths.
    pub fn under_way(&self) -> usize {
        self.paths.iter().flat_map(|path| &path.lanes).map(|lane| lane.frames.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Delay = Delay { least: 10, most: 1000, slow_permille: 100 };

    #[test]
    fn frames_of_a_lane_arrive_in_order_and_on_time() {
        let (mut network, mut random) = (Network::default(), Random::new(1));
        let path = network.add(1, 100, DELAY);
        let due: Vec<u64> =
            (0..100).map(|n| network.send(path, 0, n, 0, &mut random).expect("there is room")).collect();
        assert!(due.is_sorted());
        for (n, due) in due.into_iter().enumerate() {
            assert_eq!(network.receive(path, 0, due - 1), None);
            assert_eq!(network.receive(path, 0, due), Some(n));
        }
    }

    #[test]
    fn slots_are_limited_and_a_cut_loses_frames_under_way() {
        let (mut network, mut random) = (Network::default(), Random::new(1));
        let path = network.add(2, 2, DELAY);
        for lane in 0..2 {
            assert!(network.send(path, lane, 'a', 0, &mut random).is_some());
            assert!(network.send(path, lane, 'b', 0, &mut random).is_some());
            assert_eq!(network.send(path, lane, 'c', 0, &mut random), None);
        }
        assert_eq!(network.cut(path), 4);
        assert_eq!(network.send(path, 0, 'd', 0, &mut random), None);
        network.restore(path, 1);
        assert!(network.has_room(path, 0) && network.under_way() == 0);
    }
}
