//! Ctrl-C.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::exit;

/// Makes Ctrl-C stop what can be stopped. Anywhere else, and when it is pressed a second time, it ends the program, unless
/// the program was spared.
pub struct Interrupts {
    cancelled: Arc<AtomicBool>,
    stoppable: Arc<AtomicBool>,
    spared: Arc<AtomicBool>,
}

impl Interrupts {
    /// From now on Ctrl-C comes here.
    pub fn catch() -> Interrupts {
        let this =
            Interrupts { cancelled: Arc::default(), stoppable: Arc::default(), spared: Arc::default() };
        let (cancelled, stoppable, spared) =
            (Arc::clone(&this.cancelled), Arc::clone(&this.stoppable), Arc::clone(&this.spared));
        let caught = ctrlc::set_handler(move || {
            let first = !cancelled.swap(true, Ordering::SeqCst);
            let stops = first && stoppable.load(Ordering::SeqCst);
            if !stops && !spared.load(Ordering::SeqCst) {
                std::process::exit(exit::INTERRUPTED.into());
            }
        });
        if let Err(error) = caught {
            // Ctrl-C then ends the program, as it does by default: worse, but no reason to give up.
            tracing::warn!(%error, "Ctrl-C cannot be caught");
        }
        this
    }

    /// From now on Ctrl-C never ends the program: for a conversation, which a late key press must not lose.
    pub fn spare_program(&self) {
        self.spared.store(true, Ordering::SeqCst);
    }

    /// Does `work`, which ends early when the flag that it is given becomes true.
    pub fn during<T>(&self, work: impl FnOnce(&AtomicBool) -> T) -> T {
        self.cancelled.store(false, Ordering::SeqCst);
        self.stoppable.store(true, Ordering::SeqCst);
        let outcome = work(&self.cancelled);
        self.stoppable.store(false, Ordering::SeqCst);
        outcome
    }
}
