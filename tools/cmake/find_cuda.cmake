# Looks for what the CUDA backend needs; FORETRAIN_HAVE_CUDA says whether all of it is there.
set(FORETRAIN_CUDA AUTO CACHE STRING "Build the CUDA backend: AUTO (where it can be), ON or OFF")
set_property(CACHE FORETRAIN_CUDA PROPERTY STRINGS AUTO ON OFF)
set(FORETRAIN_HAVE_CUDA OFF)
if(FORETRAIN_CUDA STREQUAL "OFF")
  return()
endif()
include(CheckLanguage)
# The check looks on the PATH only; a compiler without its libraries must not count.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(foretrain_nvcc nvcc HINTS $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
  if(foretrain_nvcc)
    set(ENV{CUDACXX} ${foretrain_nvcc})
  endif()
endif()
check_language(CUDA)
set(missing "")
if(CMAKE_CUDA_COMPILER)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    # A100 and H100; later devices compile sm_90's PTX when they first load it. Each more takes half
    # a minute of a build.
    set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit 12 QUIET)
  # Optional, and loaded at run time, so headers are enough: without NCCL's the backend runs one
  # rank, without cuDNN's `kernels.attention: cudnn` is refused on devices, without CUPTI's times are
  # those of events. Python's packages have headers and libraries too.
  file(GLOB python_includes LIST_DIRECTORIES TRUE
       $ENV{VIRTUAL_ENV}/lib/python3*/site-packages/nvidia/*/include
       $ENV{CONDA_PREFIX}/lib/python3*/site-packages/nvidia/*/include
       $ENV{HOME}/.local/lib/python3*/site-packages/nvidia/*/include
       /usr/local/lib/python3*/dist-packages/nvidia/*/include
       /usr/local/lib/python3*/site-packages/nvidia/*/include
       /usr/lib/python3*/dist-packages/nvidia/*/include
       /opt/conda/lib/python3*/site-packages/nvidia/*/include)
  find_path(nccl_include nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} PATHS ${python_includes})
  find_path(cudnn_include cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} PATHS ${python_includes})
  find_path(cupti_include cupti.h HINTS ${CUDAToolkit_INCLUDE_DIRS}
            ${CUDAToolkit_TARGET_DIR}/extras/CUPTI/include
            PATHS ${python_includes})
  if(NOT TARGET CUDA::cublasLt)
    string(APPEND missing " cuBLASLt")
  endif()
else()
  set(missing " nvcc")
endif()

if(missing STREQUAL "")
  set(FORETRAIN_HAVE_CUDA ON)
elseif(FORETRAIN_CUDA STREQUAL "ON")
  message(FATAL_ERROR "FORETRAIN_CUDA is ON, but these are missing:${missing}")
else()
  message(STATUS "CUDA backend left out; missing:${missing}")
endif()
