//! The live screen: a cluster at work, updated every interval until a key ends it.
//!
//! A separate thread asks the nodes, so keys work while a node hangs. The terminal is restored at
//! the end, whether by a key, a signal, a node or a panic.

mod screen;

use std::{
    io::{self, IsTerminal},
    sync::{
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use plexus_admin::config::Config;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use self::screen::Screen;
use crate::cluster::Reading;

/// The maximum delay before a key, a signal or a reading is noticed.
const LOOK: Duration = Duration::from_millis(50);

/// The reason why there is no screen.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    /// The output is no terminal.
    #[error(
        "a live screen needs a terminal; for a log use `-i SECONDS`, for other programs `-i SECONDS --json`"
    )]
    NoTerminal,
    /// The terminal lacks a function that the screen needs.
    #[error("the terminal: {0}")]
    Terminal(#[from] io::Error),
}

/// The action of a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum KeyAction {
    Quit,
    Pause,
    Sort,
    Workers,
    Nothing,
}

/// Shows the cluster until a key or `stop` ends it.
///
/// # Errors
/// There is no terminal, or it fails.
pub fn run(
    config: &Config,
    only: Option<&str>,
    interval: Duration,
    stop: &AtomicBool,
) -> Result<(), LiveError> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(LiveError::NoTerminal);
    }
    let (tell, readings) = mpsc::channel();
    let (config_there, only) = (config.clone(), only.map(str::to_owned));
    // The thread ends with the first reading that has no receiver, or with the program.
    thread::Builder::new()
        .name("readings".into())
        .spawn(move || read(&config_there, only.as_deref(), interval, &tell))?;
    let mut terminal = ratatui::try_init()?;
    let result = (|| {
        let mut screen = Screen::new(&config.name, interval);
        let mut changed = true;
        while !stop.load(Relaxed) {
            while let Ok(reading) = readings.try_recv() {
                screen.take(reading);
                changed = true;
            }
            if changed {
                terminal.draw(|frame| screen.draw(frame))?;
            }
            changed = event::poll(LOOK)?;
            if changed {
                match key_action(&event::read()?) {
                    KeyAction::Quit => break,
                    KeyAction::Pause => screen.pause(),
                    KeyAction::Sort => screen.sort(),
                    KeyAction::Workers => screen.workers(),
                    KeyAction::Nothing => {}
                }
            }
        }
        Ok(())
    })();
    ratatui::try_restore()?;
    result
}

fn read(config: &Config, only: Option<&str>, interval: Duration, tell: &mpsc::Sender<Reading>) {
    let mut next = Instant::now();
    while let Ok(reading) = Reading::take(config, only) {
        if tell.send(reading).is_err() {
            return;
        }
        // Skips times that have passed: a slow node leads to gaps, not to a queue.
        while next <= Instant::now() {
            next += interval;
        }
        thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

fn key_action(event: &Event) -> KeyAction {
    let Event::Key(KeyEvent { code, modifiers, kind: KeyEventKind::Press, .. }) = event else {
        return KeyAction::Nothing;
    };
    match (code, modifiers.contains(KeyModifiers::CONTROL)) {
        (KeyCode::Char('c' | 'd'), true) | (KeyCode::Char('q') | KeyCode::Esc, false) => KeyAction::Quit,
        (KeyCode::Char('p' | ' '), false) => KeyAction::Pause,
        (KeyCode::Char('s'), false) => KeyAction::Sort,
        (KeyCode::Char('w'), false) => KeyAction::Workers,
        _ => KeyAction::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_do_what_the_help_says() {
        let press = |code, modifiers| key_action(&Event::Key(KeyEvent::new(code, modifiers)));
        for (key, wanted) in [
            ('q', KeyAction::Quit),
            ('p', KeyAction::Pause),
            ('s', KeyAction::Sort),
            ('w', KeyAction::Workers),
            ('x', KeyAction::Nothing),
        ] {
            assert_eq!(press(KeyCode::Char(key), KeyModifiers::NONE), wanted, "{key}");
        }
        assert_eq!(press(KeyCode::Char('c'), KeyModifiers::CONTROL), KeyAction::Quit);
        assert_eq!(press(KeyCode::Char('c'), KeyModifiers::NONE), KeyAction::Nothing);
        assert_eq!(key_action(&Event::Resize(1, 1)), KeyAction::Nothing);
        let released =
            KeyEvent { kind: KeyEventKind::Release, ..KeyEvent::new(KeyCode::Char('q'), KeyModifiers::NONE) };
        assert_eq!(key_action(&Event::Key(released)), KeyAction::Nothing);
    }
}
