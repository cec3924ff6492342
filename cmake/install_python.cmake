# Lays the Python packages, the executables and the launch files, as copies or (PHYAI_DEV_LINKS) as links.
ament_get_python_install_dir(PYTHON_DIR)
set(PHYAI_EXECUTABLES policy_node sim_robot dashboard)
set(PHYAI_SHARED_FOLDERS launch config)

# Installs a script from scripts/. In the development loop it names the venv's own interpreter, so that it
# also runs where the venv is not activated.
function(phyai_install_script name destination)
  set(script ${CMAKE_CURRENT_SOURCE_DIR}/scripts/${name})
  if(PHYAI_DEV_LINKS)
    file(READ ${script} text)
    string(REPLACE "#!/usr/bin/env python3" "#!${Python3_EXECUTABLE}" text "${text}")
    set(script ${CMAKE_CURRENT_BINARY_DIR}/scripts/${name})
    file(WRITE ${script} "${text}")
  endif()
  install(PROGRAMS ${script} DESTINATION ${destination})
endfunction()

foreach(name IN LISTS PHYAI_EXECUTABLES)
  phyai_install_script(${name} lib/${PROJECT_NAME})
endforeach()
phyai_install_script(phyai-ros bin)

if(PHYAI_DEV_LINKS)
  # rosidl installs phyai_ros/__init__.py and the messages; ours extends the path to the source tree, which
  # a .pth file makes importable under the package names.
  install(FILES phyai_ros/__init__.py DESTINATION ${PYTHON_DIR}/phyai_ros)
  set(links ${CMAKE_INSTALL_PREFIX}/share/${PROJECT_NAME}/source)
  file(WRITE ${CMAKE_CURRENT_BINARY_DIR}/phyai_ros_source.pth "${links}\n")
  install(FILES ${CMAKE_CURRENT_BINARY_DIR}/phyai_ros_source.pth DESTINATION ${PYTHON_DIR})
  install(CODE "
    file(MAKE_DIRECTORY \"${links}\")
    foreach(pair phyai_ros:phyai_ros phyai_core:phyai_core adapters:phyai_adapters kernels:phyai_kernels)
      string(REPLACE \":\" \";\" pair \${pair})
      list(GET pair 0 folder)
      list(GET pair 1 name)
      file(CREATE_LINK \"${CMAKE_CURRENT_SOURCE_DIR}/\${folder}\" \"${links}/\${name}\" SYMBOLIC)
    endforeach()
    foreach(folder ${PHYAI_SHARED_FOLDERS})
      file(CREATE_LINK \"${CMAKE_CURRENT_SOURCE_DIR}/\${folder}\" \"${links}/../\${folder}\" SYMBOLIC)
    endforeach()
  ")
else()
  # rosidl already owns the package name phyai_ros: our modules join the generated package.
  install(DIRECTORY phyai_ros/ DESTINATION ${PYTHON_DIR}/phyai_ros PATTERN "__pycache__" EXCLUDE)
  ament_python_install_package(phyai_core PACKAGE_DIR ${CMAKE_CURRENT_SOURCE_DIR}/phyai_core)
  ament_python_install_package(phyai_adapters PACKAGE_DIR ${CMAKE_CURRENT_SOURCE_DIR}/adapters)
  ament_python_install_package(phyai_kernels PACKAGE_DIR ${CMAKE_CURRENT_SOURCE_DIR}/kernels)
  install(DIRECTORY ${PHYAI_SHARED_FOLDERS} DESTINATION share/${PROJECT_NAME})
endif()
