//! Things behind the handles that C programs hold.
//!
//! Main types: [`Table`]. Neighbours: `machine` has one for streams, events, modules, functions, graphs and pools.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use crate::abi::Handle;
use crate::code::{Code, Outcome};

/// A handle that no other thing of this process ever had: a stale one is refused, not mistaken for another.
pub(crate) fn new_handle() -> Handle {
    static NEXT: AtomicUsize = AtomicUsize::new(0x1_0000);
    NEXT.fetch_add(0x10, Ordering::Relaxed)
}

/// Things of one kind by their handles.
#[derive(Debug)]
pub(crate) struct Table<T: ?Sized> {
    entries: RwLock<HashMap<Handle, Arc<T>>>,
}

impl<T: ?Sized> Default for Table<T> {
    fn default() -> Self {
        Self { entries: RwLock::default() }
    }
}

impl<T: ?Sized> Table<T> {
    pub(crate) fn insert(&self, handle: Handle, value: Arc<T>) {
        self.entries.write().unwrap_or_else(PoisonError::into_inner).insert(handle, value);
    }

    pub(crate) fn get(&self, handle: Handle) -> Outcome<Arc<T>> {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        entries.get(&handle).cloned().ok_or(Code::INVALID_HANDLE)
    }

    pub(crate) fn remove(&self, handle: Handle) -> Outcome<Arc<T>> {
        let mut entries = self.entries.write().unwrap_or_else(PoisonError::into_inner);
        entries.remove(&handle).ok_or(Code::INVALID_HANDLE)
    }

    pub(crate) fn all(&self) -> Vec<Arc<T>> {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    pub(crate) fn len(&self) -> u64 {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).len() as u64
    }
}
