# SPDX-License-Identifier: Apache-2.0
# Packages, and the list of what they are made of. `cmake --preset package && ninja -C build-package package` writes a
# .deb and a .tar.gz that may be unpacked anywhere: library, headers, command, CMake package.

# The software bill of materials: attune.spdx.json, in SPDX 2.3. tests/house/package_test.py compares it with
# THIRD_PARTY_NOTICES.md.
get_property(attune_parts_said GLOBAL PROPERTY attune_parts_said)
string(TIMESTAMP sbom_time "%Y-%m-%dT%H:%M:%SZ" UTC)  # SOURCE_DATE_EPOCH, if it is set
set(sbom_packages "")
set(sbom_relations "")
set(sbom_names "")
foreach(line ${attune_parts_said})
  string(REPLACE "|" ";" fields "${line}")
  list(GET fields 0 part)
  list(GET fields 1 part_version)
  list(GET fields 2 part_license)
  list(GET fields 3 part_url)
  string(REGEX REPLACE "[^A-Za-z0-9.-]+" "-" part_id "${part}")
  if(part_version)
    set(part_version ", \"versionInfo\": \"${part_version}\"")
  endif()
  string(APPEND sbom_names "${line}\n")
  string(APPEND sbom_packages ",
    {\"SPDXID\": \"SPDXRef-${part_id}\", \"name\": \"${part}\"${part_version},
     \"downloadLocation\": \"${part_url}\", \"filesAnalyzed\": false, \"licenseConcluded\": \"${part_license}\",
     \"licenseDeclared\": \"${part_license}\", \"copyrightText\": \"NOASSERTION\"}")
  string(APPEND sbom_relations ",
    {\"spdxElementId\": \"SPDXRef-attune\", \"relationshipType\": \"STATIC_LINK\",
     \"relatedSpdxElement\": \"SPDXRef-${part_id}\"}")
endforeach()
string(SHA256 sbom_hash "${PROJECT_VERSION} ${CMAKE_SYSTEM_PROCESSOR} ${sbom_time}\n${sbom_names}")
configure_file(${CMAKE_CURRENT_LIST_DIR}/attune.spdx.json.in ${CMAKE_BINARY_DIR}/attune.spdx.json @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/attune.spdx.json DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT library)
if(SKBUILD)
  install(FILES ${CMAKE_BINARY_DIR}/attune.spdx.json DESTINATION ${SKBUILD_METADATA_DIR}/sboms COMPONENT python
    EXCLUDE_FROM_ALL)
endif()

if(NOT PROJECT_IS_TOP_LEVEL)
  return()
endif()
set(CPACK_GENERATOR TGZ DEB)
set(CPACK_PACKAGE_NAME attune)
set(CPACK_PACKAGE_VENDOR "The Attune authors")
set(CPACK_PACKAGE_CONTACT "The Attune authors <attune@invalid>")  # a .deb must have an address
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGE_FILE_NAME attune-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_PACKAGE_CHECKSUM SHA256)
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)  # needs dpkg-shlibdeps of dpkg-dev
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS libopenblas0)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libsqlite3-0, openssh-client, python3")
include(CPack)
