// Package behind runs Fairlead behind the cluster's own aggregator: `make behind`.
package behind
