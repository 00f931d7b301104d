// Package release tests what `make release` makes: that it makes it twice alike, that the package
// installs and its unit starts, that the image runs on what it brings, and that image and chart can
// be pushed and pulled. `make releases` runs it, as root.
package release
