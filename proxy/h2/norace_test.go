//go:build !race

package h2

const slower = 1
