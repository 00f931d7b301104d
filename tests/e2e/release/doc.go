// Package release tests the results of `make release`: a second release is identical, the package
// installs and its unit starts, the image needs nothing but its content, and image and chart can be
// pushed and pulled. `make releases` runs it, as root.
package release
