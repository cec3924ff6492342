# Two include paths that CMake refuses. A ROS installation has neither: there, nothing changes.

# ROS 2 wheels export targets that still carry the include paths of the machine they were built on
# (/opt/python/cp3XX-cp3XX/...): replaced by those of the Python in use.
function(_phyai_fix_wheel_includes)
  get_property(targets DIRECTORY PROPERTY IMPORTED_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(paths ${target} INTERFACE_INCLUDE_DIRECTORIES)
    if(NOT paths MATCHES "/opt/python/cp")
      continue()
    endif()
    list(FILTER paths EXCLUDE REGEX "/opt/python/cp")
    list(APPEND paths ${Python3_INCLUDE_DIRS} ${Python3_NumPy_INCLUDE_DIRS})
    list(REMOVE_DUPLICATES paths)
    set_target_properties(${target} PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${paths}")
  endforeach()
endfunction()

# The headers of numpy lie in the source tree where the virtual environment does: nothing to export.
function(_phyai_keep_numpy_private)
  set(target ${PROJECT_NAME}__rosidl_generator_py)
  if(NOT TARGET ${target})
    return()
  endif()
  get_target_property(paths ${target} INTERFACE_INCLUDE_DIRECTORIES)
  list(TRANSFORM paths REPLACE "^(${CMAKE_SOURCE_DIR}/.*)$" "$<BUILD_INTERFACE:\\1>")
  set_target_properties(${target} PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${paths}")
endfunction()

# Deferred to the end of the directory: the targets appear while packages are found.
cmake_language(DEFER CALL _phyai_fix_wheel_includes)
cmake_language(DEFER CALL _phyai_keep_numpy_private)
