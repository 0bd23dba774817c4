//! The wrappers of NVIDIA's libraries in cudarc take buffers, views and guards. Compiled and never run: the libraries
//! are not there, and nothing links them.
//!
//! Main types: none. Neighbours: `values` runs cudarc's copies.

use concertina::cuda::{DeviceBuffer, Error, On, OnMut, Stream, View, ViewMut};
use cudarc::cublas::{CudaBlas, Gemm, GemmConfig, result::CublasError};

/// A product of matrices by cuBLAS, whose handle is of one stream. Each kind of argument stands where cuBLAS takes it.
#[allow(dead_code, reason = "that it compiles is the test")]
fn multiply(
    blas: &CudaBlas,
    config: GemmConfig<f32>,
    (whole, part, guard): (&DeviceBuffer<f32>, &View<'_, f32>, &On<'_, f32>),
    (to_whole, to_part, to_guard): (&mut DeviceBuffer<f32>, &mut ViewMut<'_, f32>, &mut OnMut<'_, f32>),
) -> Result<(), CublasError> {
    // SAFETY: not run.
    unsafe { blas.gemm(config, whole, part, to_whole) }?;
    // SAFETY: not run.
    unsafe { blas.gemm(config, part, guard, to_part) }?;
    // SAFETY: not run.
    unsafe { blas.gemm(config, guard, whole, to_guard) }
}

/// On another stream than the home: by guards.
#[allow(dead_code, reason = "that it compiles is the test")]
fn multiply_elsewhere(
    blas: &CudaBlas,
    config: GemmConfig<f32>,
    stream: &Stream,
    x: &DeviceBuffer<f32>,
    y: &mut DeviceBuffer<f32>,
) -> Result<Result<(), CublasError>, Error> {
    // SAFETY: not run.
    Ok(unsafe { blas.gemm(config, &x.on(stream)?, &x.on(stream)?, &mut y.on_mut(stream)?) })
}
