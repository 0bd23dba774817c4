//! Modules and functions: names that lead to registered kernels.
//!
//! Main types: [`Modules`], [`Function`]. Neighbours: `kernel` has what was registered, `exports::module` the calls.
//!
//! What a module was loaded from is not read. A function is found by its name alone, so any image will do.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use crate::abi::Handle;
use crate::code::Outcome;
use crate::kernel::Kernel;
use crate::table::{Table, new_handle};

/// A module knows nothing.
#[derive(Debug)]
pub(crate) struct Module;

/// A kernel as a module gave it out.
#[derive(Debug)]
pub(crate) struct Function {
    pub(crate) kernel: Arc<Kernel>,
}

#[derive(Debug, Default)]
pub(crate) struct Modules {
    pub(crate) loaded: Table<Module>,
    pub(crate) functions: Table<Function>,
    /// The handle of each function that was found in a module.
    found: Mutex<HashMap<(Handle, String), Handle>>,
}

impl Modules {
    pub(crate) fn load(&self) -> Handle {
        let handle = new_handle();
        self.loaded.insert(handle, Arc::new(Module));
        handle
    }

    /// Unloads a module with its functions.
    pub(crate) fn unload(&self, module: Handle) -> Outcome {
        self.loaded.remove(module)?;
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        found.retain(|&(of, _), &mut function| {
            if of == module {
                let _ = self.functions.remove(function);
            }
            of != module
        });
        Ok(())
    }

    /// The function with this name, if a kernel is registered under it.
    pub(crate) fn function(&self, module: Handle, name: &str) -> Outcome<Handle> {
        self.loaded.get(module)?;
        let kernel = Kernel::find(name)?;
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = *found.entry((module, name.to_owned())).or_insert_with(new_handle);
        self.functions.insert(handle, Arc::new(Function { kernel }));
        Ok(handle)
    }
}
