//! Finding and opening the cdylib.
//!
//! Main types: [`LoadError`]. Neighbours: `library` is what it gives.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use super::functions::{Functions, OpenFile};
use super::library::Library;
use crate::abi::INTERFACE;

/// The file that cargo makes of this crate.
const FILE: &str = "libconcertina_libcuda.so";
/// Names the file to open, in place of the search.
const VARIABLE: &str = "CONCERTINA_LIBCUDA";

/// Opens the emulated driver, so that from now on `libcuda.so` is it for the whole process. Call it before the first call
/// of CUDA. Later calls give the same library.
///
/// The file is the one that the environment variable `CONCERTINA_LIBCUDA` names; else `libconcertina_libcuda.so` in the
/// `deps` of the running program's directory, in that itself, in the `deps` of the one above, or in that: where cargo puts
/// it for programs, tests and examples.
///
/// # Errors
/// If the file is not found or can't be opened, is of another build, or another `libcuda.so` came first.
pub fn load() -> Result<&'static Library, LoadError> {
    let path = match std::env::var_os(VARIABLE) {
        Some(path) => PathBuf::from(path),
        None => search()?,
    };
    load_from(&path)
}

/// The same with the file at this path, absolute or not.
///
/// # Errors
/// As [`load`].
pub fn load_from(path: &Path) -> Result<&'static Library, LoadError> {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    static LOADING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(library) = LIBRARY.get() {
        return Ok(library);
    }
    let library = open(path)?;
    Ok(LIBRARY.get_or_init(|| library))
}

fn search() -> Result<PathBuf, LoadError> {
    let program = std::env::current_exe().map_err(LoadError::NoProgram)?;
    let own = program.parent().unwrap_or(Path::new("."));
    let above = own.parent().unwrap_or(own);
    // Cargo builds into `deps`; what lies above may be of an earlier build.
    let places = [own.join("deps"), own.to_owned(), above.join("deps"), above.to_owned()];
    let found = places.iter().map(|directory| directory.join(FILE)).find(|file| file.is_file());
    found.ok_or_else(|| LoadError::NotFound { directory: own.to_owned() })
}

fn open(path: &Path) -> Result<Library, LoadError> {
    let at = || path.to_owned();
    let absolute = std::path::absolute(path).map_err(LoadError::NoProgram)?;
    let name = CString::new(absolute.as_os_str().as_bytes())
        .map_err(|_| LoadError::NotOpened { path: at(), reason: "a zero in the path".to_owned() })?;
    let file = OpenFile::open(&name, libc::RTLD_NODELETE)
        .map_err(|reason| LoadError::NotOpened { path: at(), reason })?;
    let interface = file
        .find(c"concertina_libcuda_interface")
        .ok_or(LoadError::OtherFile { path: at(), symbol: "concertina_libcuda_interface" })?;
    // SAFETY: every build of this library has this function with this type.
    let interface =
        unsafe { core::mem::transmute::<*mut core::ffi::c_void, extern "C" fn() -> u32>(interface.as_ptr()) };
    let found = interface();
    if found != INTERFACE {
        return Err(LoadError::OtherBuild { path: at(), found, wanted: INTERFACE });
    }
    let functions = Functions::find(file).map_err(|symbol| LoadError::OtherFile { path: at(), symbol })?;
    // Whoever asks for the driver by its name must get this file.
    match OpenFile::open(c"libcuda.so", libc::RTLD_NOLOAD) {
        Ok(driver) if driver == file => Ok(Library::new(functions, absolute)),
        _ => Err(LoadError::AnotherDriver { path: at() }),
    }
}

/// Why the emulated driver is not there.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The system doesn't tell where the running program or the working directory is.
    #[error("can't tell where the program is ({0}); name the file in {VARIABLE}")]
    NoProgram(#[source] std::io::Error),
    /// The file is in none of the places.
    #[error(
        "no {FILE} beside the program in {}, in its deps or above; depend on concertina-libcuda, or build it with `cargo \
         build -p concertina-libcuda` and name the file in {VARIABLE}", directory.display()
    )]
    NotFound {
        /// The program's directory.
        directory: PathBuf,
    },
    /// The dynamic loader refuses it.
    #[error("can't open {}: {reason}", path.display())]
    NotOpened {
        /// The file.
        path: PathBuf,
        /// The loader's words.
        reason: String,
    },
    /// It is not this library.
    #[error("{} doesn't export {symbol}: not an emulated driver of Concertina's", path.display())]
    OtherFile {
        /// The file.
        path: PathBuf,
        /// What it lacks.
        symbol: &'static str,
    },
    /// It is this library, of another version.
    #[error("{} has interface {found}, this program {wanted}: build both again", path.display())]
    OtherBuild {
        /// The file.
        path: PathBuf,
        /// Its interface.
        found: u32,
        /// Ours.
        wanted: u32,
    },
    /// CUDA was called before, or the program is linked against a driver.
    #[error(
        "{} is open, but libcuda.so is another file in this process: open the emulator before the first call of CUDA, \
         and don't link libcuda", path.display()
    )]
    AnotherDriver {
        /// The file.
        path: PathBuf,
    },
}
