//! Directed paths with lanes: late, in order within a lane, of bounded room, and sometimes cut.

use std::collections::VecDeque;

use crate::Random;

/// One direction of one rail.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PathId(pub usize);

/// How long a frame takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Delay {
    /// At least, in nanoseconds.
    pub least: u64,
    /// At most, usually.
    pub most: u64,
    /// Of a thousand frames, so many take up to fifty times as long.
    pub slow_permille: u64,
}

impl Delay {
    /// One frame's delay.
    pub fn draw(&self, random: &mut Random) -> u64 {
        let delay = random.between(self.least, self.most);
        if self.slow_permille > 0 && random.permille(self.slow_permille) {
            delay * random.between(2, 50)
        } else {
            delay
        }
    }
}

/// Why a frame was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// Every slot of the lane holds a frame that was not received yet.
    Full,
    /// The path is cut.
    Cut,
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

    /// Sends a frame: how long from `now` until it has arrived. The caller schedules the look at the other end. A
    /// frame takes its slot until it is received.
    ///
    /// # Errors
    /// Nothing was sent: the frame comes back.
    pub fn send(
        &mut self,
        path: PathId,
        lane: usize,
        frame: F,
        now: u64,
        random: &mut Random,
    ) -> Result<u64, (Refused, F)> {
        let path = &mut self.paths[path.0];
        if !path.up {
            return Err((Refused::Cut, frame));
        }
        let state = &mut path.lanes[lane];
        if state.frames.len() >= path.slots {
            return Err((Refused::Full, frame));
        }
        let arrival = (now + path.delay.draw(random)).max(state.last_arrival);
        state.last_arrival = arrival;
        state.frames.push_back((arrival, frame));
        Ok(arrival - now)
    }

    /// Takes the next frame of a lane that has arrived by `now`, and frees its slot.
    pub fn receive(&mut self, path: PathId, lane: usize, now: u64) -> Option<F> {
        let frames = &mut self.paths[path.0].lanes[lane].frames;
        if frames.front()?.0 > now {
            return None;
        }
        frames.pop_front().map(|(_, frame)| frame)
    }

    /// Whether a lane has a frame that has arrived by `now`.
    #[must_use]
    pub fn has_arrived(&self, path: PathId, lane: usize, now: u64) -> bool {
        self.paths[path.0].lanes[lane].frames.front().is_some_and(|(at, _)| *at <= now)
    }

    /// Whether a lane has room for a frame.
    #[must_use]
    pub fn has_room(&self, path: PathId, lane: usize) -> bool {
        let path = &self.paths[path.0];
        path.up && path.lanes[lane].frames.len() < path.slots
    }

    /// Cuts a path: what is under way is lost. How many frames.
    pub fn cut(&mut self, path: PathId) -> usize {
        let path = &mut self.paths[path.0];
        path.up = false;
        path.lanes.iter_mut().map(|lane| lane.frames.drain(..).count()).sum()
    }

    /// Another path takes the place of a cut one: empty, with lanes of `slots` slots.
    pub fn restore(&mut self, path: PathId, slots: usize) {
        let path = &mut self.paths[path.0];
        (path.up, path.slots) = (true, slots);
    }

    /// Whether the path can be used.
    #[must_use]
    pub fn is_up(&self, path: PathId) -> bool {
        self.paths[path.0].up
    }

    /// Frames under way, everywhere.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.paths.iter().flat_map(|path| &path.lanes).map(|lane| lane.frames.len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DELAY: Delay = Delay { least: 10, most: 1000, slow_permille: 100 };

    #[test]
    fn frames_of_a_lane_arrive_in_order_and_only_when_due() {
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
    fn room_is_bounded_and_a_cut_loses_what_is_under_way() {
        let (mut network, mut random) = (Network::default(), Random::new(1));
        let path = network.add(2, 2, DELAY);
        for lane in 0..2 {
            assert!(network.send(path, lane, 'a', 0, &mut random).is_ok());
            assert!(network.send(path, lane, 'b', 0, &mut random).is_ok());
            assert_eq!(network.send(path, lane, 'c', 0, &mut random), Err((Refused::Full, 'c')));
        }
        assert_eq!(network.cut(path), 4);
        assert_eq!(network.send(path, 0, 'd', 0, &mut random), Err((Refused::Cut, 'd')));
        network.restore(path, 1);
        assert!(network.has_room(path, 0) && network.under_way() == 0);
    }
}
