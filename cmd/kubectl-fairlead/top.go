package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/fairlead-proxy/fairlead/cmd/answer"
	"github.com/fairlead-proxy/fairlead/internal/busiest"
)

func topCommand() *cobra.Command {
	flags := genericclioptions.NewConfigFlags(true)
	var form form
	var by, window, order string
	limit, replicas := 0, false
	cmd := &cobra.Command{
		Use: "top", Short: "Show who sends the requests, and what they do", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			printer, err1 := form.printer()
			c, err2 := connect(flags, cmd.OutOrStdout())
			if err := errors.Join(err1, err2); err != nil {
				return err
			}
			query := url.Values{"by": {by}, "window": {window}, "sort": {order}, "limit": {strconv.Itoa(limit)}}
			ask := func(ctx context.Context, from *client) (*busiest.Answer, error) {
				a := &busiest.Answer{}
				return a, from.get(ctx, answer.Below+"/busiest", query, a)
			}
			var a *busiest.Answer
			var err error
			if replicas && limit > 0 && limit <= 100 { // another one is refused by the one server
				query.Set("limit", "100") // the most that one shows
				a, err = c.addUp(cmd.Context(), ask)
				a.Top(order, limit)
			} else {
				a, err = ask(cmd.Context(), c)
			}
			switch {
			case a.To.IsZero(): // nobody has answered
				return err
			case printer != nil:
				return errors.Join(encode(c.out, printer, "Busiest", a), err)
			}
			summary, table := a.Table(form.wide())
			var rows [][]cell
			for _, texts := range table {
				rows = append(rows, cells(texts...))
			}
			_, err1 = fmt.Fprintln(c.out, summary)
			return errors.Join(err1, c.palette.table(c.out, rows), err)
		},
	}
	cmd.Flags().StringVar(&by, "by", "caller", "One row for each caller, user, agent, resource or source.")
	cmd.Flags().StringVar(&window, "window", "minute", "The last minute, or the last hour.")
	cmd.Flags().StringVar(&order, "sort", "weight",
		"Most first: weight (bytes, and 4 KiB a request), requests, bytes, watches, errors, refused or slowest.")
	cmd.Flags().IntVar(&limit, "limit", 20, "The most rows, up to 100.")
	cmd.Flags().BoolVar(&replicas, "replicas", false, "Ask each replica, on its admin port, and add their rows up.")
	form.addFlags(cmd)
	groupFlags(cmd, flags)
	return cmd
}

// addUp adds up what all replicas answer, without those that do not, which are its error.
func (c *client) addUp(
	ctx context.Context, ask func(context.Context, *client) (*busiest.Answer, error)) (*busiest.Answer, error) {
	sum := &busiest.Answer{}
	all, err := askEach(ctx, c, ask)
	for _, r := range all {
		if r.err != nil {
			err = errors.Join(err, fmt.Errorf("replica %s: %w", r.address, r.err))
			continue
		}
		a := r.status
		if sum.To.IsZero() || a.From.Before(sum.From) {
			sum.From = a.From
		}
		if a.To.After(sum.To) {
			sum.To = a.To
		}
		sum.Missed, sum.Rows = sum.Missed+a.Missed, append(sum.Rows, a.Rows...)
		sum.Total.Add(&a.Total, 1)
	}
	return sum, err
}
